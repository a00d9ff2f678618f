#pragma once
/// As much of GoogleTest's interface as tests/cuda uses, for GPU machines that have no GoogleTest. One line a test; a failure
/// shows file, line and text.

#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

namespace testing {

class Message {
  public:
    template <typename T>
    Message& operator<<(const T& v) {
        text_ << v;
        return *this;
    }
    std::string str() const { return text_.str(); }

  private:
    std::ostringstream text_;
};

namespace internal {
struct State {
    bool failed = false, skipped = false;
    std::string skip_reason;
    std::vector<std::string> traces;
};
inline State& state() {
    static State s;
    return s;
}
/// The end of EXPECT_…(…) << text.
class Report {
  public:
    Report(const char* file, int line, std::string what, bool skip = false) : file_(file), line_(line), what_(std::move(what)), skip_(skip) {}
    void operator=(const Message& m) const {
        if (skip_) {
            state().skipped = true;
            state().skip_reason = m.str();
            return;
        }
        state().failed = true;
        std::printf("%s:%d: %s %s\n", file_, line_, what_.c_str(), m.str().c_str());
        for (const auto& t : state().traces) std::printf("  in %s\n", t.c_str());
    }

  private:
    const char* file_;
    int line_;
    std::string what_;
    bool skip_;
};
class Trace {
  public:
    explicit Trace(const std::string& t) { state().traces.push_back(t); }
    ~Trace() { state().traces.pop_back(); }
};
struct Registered {
    std::string name;
    std::function<void()> run;
};
inline std::vector<Registered>& tests() {
    static std::vector<Registered> t;
    return t;
}
template <typename A, typename B>
bool same(const A& a, const B& b) {
    if constexpr (std::is_integral_v<A> && std::is_integral_v<B>)
        return static_cast<long long>(a) == static_cast<long long>(b);
    else
        return a == b;
}
}  // namespace internal

class Test {
  public:
    virtual ~Test() = default;
    virtual void SetUp() {}
    virtual void TearDown() {}
    virtual void TestBody() = 0;
    static bool HasFailure() { return internal::state().failed; }
    void Run() {
        SetUp();
        if (!internal::state().skipped) TestBody();
        TearDown();
    }
};
template <typename T>
struct TestParamInfo {
    T param;
    std::size_t index;
};
template <typename T>
class TestWithParam : public Test {
  public:
    using ParamType = T;
    static const T& GetParam() { return *current(); }
    static const T*& current() {
        static const T* p = nullptr;
        return p;
    }
    struct Pattern {
        std::string name;
        std::function<Test*()> make;
    };
    static std::vector<Pattern>& patterns() {
        static std::vector<Pattern> p;
        return p;
    }
};
template <typename... T>
auto Values(T... v) {
    return std::vector<std::common_type_t<T...>>{v...};
}
/// Runs all tests. @return 1 if one failed
int run_all();

}  // namespace testing

#define TEST(suite, name)                                                                                        \
    struct suite##_##name : ::testing::Test { void TestBody() override; };                                       \
    [[maybe_unused]] static const bool suite##_##name##_known = [] {                                             \
        ::testing::internal::tests().push_back({#suite "." #name, [] { suite##_##name t; t.Run(); }});           \
        return true;                                                                                             \
    }();                                                                                                         \
    void suite##_##name::TestBody()
#define TEST_P(suite, name)                                                                                      \
    struct suite##_##name : suite { void TestBody() override; };                                                 \
    [[maybe_unused]] static const bool suite##_##name##_known = [] {                                             \
        suite::patterns().push_back({#suite "." #name, [] { return new suite##_##name; }});                      \
        return true;                                                                                             \
    }();                                                                                                         \
    void suite##_##name::TestBody()
// Patterns register after this line as well, so they are looked up when the tests run.
#define INSTANTIATE_TEST_SUITE_P(prefix, suite, values, name_of)                                                 \
    [[maybe_unused]] static const bool suite##_instantiated = [] {                                               \
        ::testing::internal::tests().push_back({"", [] {                                                         \
            static const auto all = values;                                                                      \
            for (const auto& p : suite::patterns())                                                              \
                for (const auto& v : all)                                                                        \
                    ::testing::internal::tests().push_back({p.name + "/" + name_of({v, 0}), [make = p.make, &v] { \
                        suite::current() = &v;                                                                   \
                        ::testing::Test* t = make();                                                             \
                        t->Run();                                                                                \
                        delete t;                                                                                \
                    }});                                                                                         \
        }});                                                                                                     \
        return true;                                                                                             \
    }()

#define MOEPLAN_REPORT(what) ::testing::internal::Report(__FILE__, __LINE__, what) = ::testing::Message()
#define ADD_FAILURE() MOEPLAN_REPORT("failure:")
#define GTEST_SKIP() return ::testing::internal::Report(__FILE__, __LINE__, "", true) = ::testing::Message()
#define SCOPED_TRACE(text) const ::testing::internal::Trace moeplan_trace(text)
#define MOEPLAN_EXPECT(condition, what) if (condition) ; else MOEPLAN_REPORT(what)
#define MOEPLAN_ASSERT(condition, what) if (condition) ; else return MOEPLAN_REPORT(what)
#define EXPECT_TRUE(x) MOEPLAN_EXPECT((x), "expected true: " #x)
#define EXPECT_FALSE(x) MOEPLAN_EXPECT(!(x), "expected false: " #x)
#define EXPECT_EQ(a, b) MOEPLAN_EXPECT(::testing::internal::same((a), (b)), "expected equal: " #a ", " #b)
#define EXPECT_NE(a, b) MOEPLAN_EXPECT(!::testing::internal::same((a), (b)), "expected different: " #a ", " #b)
#define EXPECT_LE(a, b) MOEPLAN_EXPECT((a) <= (b), "expected " #a " <= " #b)
#define EXPECT_GE(a, b) MOEPLAN_EXPECT((a) >= (b), "expected " #a " >= " #b)
#define EXPECT_NEAR(a, b, t) MOEPLAN_EXPECT(std::abs((a) - (b)) <= (t), "expected " #a " near " #b)
#define EXPECT_STREQ(a, b) MOEPLAN_EXPECT(std::strcmp((a), (b)) == 0, "expected equal: " #a ", " #b)
#define EXPECT_THROW(statement, type)                                                                            \
    do {                                                                                                         \
        bool moeplan_thrown = false;                                                                             \
        try { (void)(statement); } catch (const type&) { moeplan_thrown = true; }                                \
        EXPECT_TRUE(moeplan_thrown) << "no " #type " from " #statement;                                          \
    } while (0)
#define ASSERT_EQ(a, b) MOEPLAN_ASSERT(::testing::internal::same((a), (b)), "expected equal: " #a ", " #b)
#define ASSERT_NE(a, b) MOEPLAN_ASSERT(!::testing::internal::same((a), (b)), "expected different: " #a ", " #b)
