#include "model/text/sources/sources.hpp"

#include <gmock/gmock.h>
#include <zlib.h>

#include "core/seed.hpp"

namespace moeplan::text {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Roff, TextOfAManPageWithoutItsMacros) {
    const std::string page = R"(.\" a comment
.TH qsort 3 2023-01-07
.SH NAME
qsort, qsort_r \- sort an array
.SH DESCRIPTION
The
.BR qsort ()
function sorts \fInmemb\fP elements;
see
.I "the standard" .
.PP
Pages \(em and \(aqquotes\(aq.
.nf
    int a;
    char *s = "\en";
.fi
.de XX
hidden
..
Done.)";
    const std::string text = clean(roff_to_text(page));
    EXPECT_EQ(text,
              "NAME\nqsort, qsort_r - sort an array\n\nDESCRIPTION\nThe qsort() function sorts "
              "nmemb elements; see the standard .\n\n"
              "Pages — and 'quotes'.\n    int a;\n    char *s = \"\\n\";\nDone.");
}

TEST(Pod, SectionsAreDocumentsAndCodesAreResolved) {
    const auto texts = pod_to_texts(
        "=head1 NAME\n\nperlrun - B<how> C<< a->b >> E<lt>3 L<text|perldoc> X<index>end\n\n=for "
        "html <b>no</b>\n\n=head1 MORE\n\n    code $x;\n\n=cut\n\nnot pod\n");
    ASSERT_EQ(texts.size(), 3u);  // what stands before the first heading is one, empty
    EXPECT_EQ(clean(texts[1]), "NAME\n\nperlrun - how a->b <3 text end");
    EXPECT_EQ(clean(texts[2]), "MORE\n\n    code $x;");
}

TEST(Html, ScriptsAndNavigationAreLeftOut) {
    const std::string page =
        "<html><head><title>T</title><style>p{}</style></head><body><div "
        "class=\"navheader\"><div>Prev</div></div><h2>SELECT</h2><p>a &lt; b &amp;&#38; &#x41; "
        "&unknown; x</p>"
        "<script>alert(1)</script><pre>  two\n  lines</pre></body></html>";
    EXPECT_EQ(clean(html_to_text(page)), "SELECT\n\na < b && A &unknown; x\n\n  two\n  lines");
}

TEST(Dictd, EntriesAreFoundByTheirBase64Places) {
    const std::string dict = "skip\none\n   first {word}\n\ntwo\n   second\n";
    // offset 5 = F, length 21 = V; offset 26 = a, length 14 = O; the last points outside.
    EXPECT_THAT(
        dictd_entries("00-database\tA\tF\none\tF\tV\nuno\tF\tV\ntwo\ta\tO\nbad\ta\tzzz\n", dict),
        ElementsAre(HasSubstr("first word"), HasSubstr("second")));
}

TEST(Fortunes, PercentLinesPartThem) {
    EXPECT_THAT(fortune_cookies("a\nb\n%\nc\n"), ElementsAre("a\nb\n", HasSubstr("c")));
}

TEST(Clean, WrongBytesAreMarkedAndControlsDropped) {
    EXPECT_EQ(clean("a\xFF"
                    "b\x01\r\n\n\n\nc  \n"),
              "a\xEF\xBF\xBD"
              "b\n\nc");
    EXPECT_EQ(clean("\xC3\xA4 \xED\xA0\x80"),
              "\xC3\xA4 \xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");  // a surrogate is no character
}

TEST(Gunzip, DamageAndLimitsEndItQuietly) {
    EXPECT_EQ(gunzip("no gzip"), "");
    std::string packed(200, '\0');
    z_stream stream{};
    ASSERT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
    std::string zeros(100000, 'x');
    stream.next_in = reinterpret_cast<Bytef*>(zeros.data());
    stream.avail_in = static_cast<uInt>(zeros.size());
    stream.next_out = reinterpret_cast<Bytef*>(packed.data());
    stream.avail_out = static_cast<uInt>(packed.size());
    ASSERT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
    packed.resize(stream.total_out);
    deflateEnd(&stream);
    EXPECT_EQ(gunzip(packed), zeros);
    EXPECT_EQ(gunzip(packed, 1000).size(), 1000u);
    EXPECT_LT(gunzip(packed.substr(0, packed.size() / 2)).size(), zeros.size());
}

TEST(EveryParser, TakesAnyBytes) {
    // Seeded bytes rich in each format's own signs: nothing crashes, hangs or grows without bound.
    const std::string signs = "\\.<>=&;%{}[]()\"'\t\n*fCEL/-ABab01 \xC3\xFF";
    for (std::uint64_t round = 0; round < 200; ++round) {
        DrawStream draws(derive({5}, "bytes", round));
        std::string bytes;
        for (int i = 0; i < 2000; ++i) bytes += signs[draws.below(signs.size())];
        EXPECT_LT(roff_to_text(bytes).size(), 10000u);
        EXPECT_LT(html_to_text("<p>" + bytes).size(), 10000u);
        std::size_t total = 0;
        for (const auto& text : pod_to_texts("=head1 x\n\n" + bytes)) total += text.size();
        for (const auto& text : dictd_entries(bytes, bytes)) total += text.size();
        EXPECT_LT(total, 20000u);
        clean(bytes);
    }
    // Deep nesting and open ends.
    pod_to_texts("=head1 x\n\n" + [] {
        std::string s;
        for (int i = 0; i < 100000; ++i) s += "B<";
        return s;
    }());
    html_to_text(std::string(100000, '<'));
    roff_to_text(std::string(100000, '\\'));
}

}  // namespace
}  // namespace moeplan::text
