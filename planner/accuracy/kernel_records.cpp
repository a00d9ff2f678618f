#include "planner/accuracy/kernel_records.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <map>
#include <set>

#include "planner/accuracy/fused_moe.hpp"
#include "planner/accuracy/kernel_tables.hpp"
#include "profiler/curve_index.hpp"
#include "profiler/profile.hpp"

namespace moeplan {
namespace {

constexpr int kFolds = 5;

/// GPUs that share tensor cores, and so a surface.
std::string generation(const std::string& gpu) {
    if (gpu[0] == 'a') return "ampere";
    return gpu[0] == 'h' ? "hopper" : "blackwell";
}

/// Shipped profiles without their curves and their calibration: datasheet and model.
class Bare {
  public:
    const Profile& operator()(const std::string& gpu) {
        const auto [at, added] = known_.try_emplace(gpu);
        if (added) {
            at->second = load_profile(gpu);
            at->second.kernels.clear();
            at->second.calibration = Calibration{};
            prepare(at->second);
        }
        return at->second;
    }

  private:
    std::map<std::string, Profile> known_;
};

enum class HoldOut : std::uint8_t { point, curve };

template <class Point>
int fold_of(const Point& point, HoldOut how) {
    return (how == HoldOut::point ? point.place + point.curve : point.curve) % kFolds;
}

struct Kind {
    const char *name, *kernel;
    Precision precision;
    std::vector<std::string> columns;
    const std::vector<KernelPoint>* points;
};

KernelShape shape_of(const Kind& kind, const KernelPoint& point) {
    const auto whole = [&](std::size_t i) { return std::llround(point.shape[i]); };
    if (kind.columns.front() == "m") return Gemm{whole(0), whole(1), whole(2)};
    return AttentionShape{whole(0), whole(1), whole(2), whole(3), whole(4), std::nullopt};
}

std::string words_of(const Kind& kind, const KernelPoint& point) {
    std::string words;
    for (std::size_t i = 0; i < point.shape.size(); ++i)
        words += fmt::format("{}{} {:.0f}", i ? ", " : "", kind.columns[i], point.shape[i]);
    return words;
}

/// The profile of one GPU with every point of its generation but those of one fold.
Profile without_fold(Bare& bare, const Kind& kind, const std::string& gpu, int fold, HoldOut how) {
    Profile profile = bare(gpu);
    std::map<std::string, KernelCurve> curves;  // by the GPU it was measured on
    for (const KernelPoint& point : *kind.points) {
        if (generation(point.gpu) != generation(gpu) || fold_of(point, how) == fold) continue;
        KernelCurve& curve = curves[point.gpu];
        if (curve.rows.empty()) {
            curve.kernel = kind.kernel, curve.precision = kind.precision;
            curve.basis = Basis::published, curve.columns = kind.columns;
            curve.columns.emplace_back("median_s");
            if (point.gpu != gpu) {
                const Roofline& other = bare(point.gpu).roofline;
                curve.measured_on = DeviceRates{point.gpu, peak_of(other, kind.precision),
                                                other.memory_bandwidth, other.num_sms};
            }
        }
        curve.rows.push_back(point.shape);
        curve.rows.back().push_back(point.seconds);
    }
    for (auto& [name, curve] : curves) profile.kernels.push_back(std::move(curve));
    prepare(profile);
    return profile;
}

void predict_kind(Bare& bare, const Kind& kind, std::vector<HeldOutRow>& rows) {
    std::set<std::string> gpus;
    for (const KernelPoint& point : *kind.points) gpus.insert(point.gpu);
    for (const HoldOut how : {HoldOut::point, HoldOut::curve})
        for (const std::string& gpu : gpus)
            for (int fold = 0; fold < kFolds; ++fold) {
                const Profile profile = without_fold(bare, kind, gpu, fold, how);
                for (const KernelPoint& point : *kind.points)
                    if (point.gpu == gpu && fold_of(point, how) == fold)
                        rows.push_back({point.id, kind.name, gpu,
                                        std::string(name_of(kind.precision)), words_of(kind, point),
                                        how == HoldOut::point ? "point" : "curve", "",
                                        point.seconds,
                                        kernel_time(profile, kind.kernel, kind.precision,
                                                    shape_of(kind, point))
                                            .time.value});
            }
}

ResidualPoint residual_of(const FusedMoePoint& point, Seconds model) {
    const double mean = static_cast<double>(point.tokens) * point.top_k / point.num_experts;
    return {{std::log2(mean), std::log2(static_cast<double>(point.hidden) * point.ffn),
             std::log2(static_cast<double>(point.local_experts))},
            std::log(point.seconds / model.value)};
}

void predict_fused(Bare& bare, const std::vector<FusedMoePoint>& points,
                   std::vector<HeldOutRow>& rows) {
    std::map<std::pair<std::string, Precision>, std::vector<std::size_t>> groups;
    std::vector<Seconds> models;
    for (const FusedMoePoint& point : points) {
        groups[{generation(point.gpu), point.precision}].push_back(models.size());
        models.push_back(fused_moe_time(fused_moe_model(point.gpu, point.precision),
                                        bare(point.gpu).roofline, point));
    }
    for (const HoldOut how : {HoldOut::point, HoldOut::curve})
        for (const auto& [group, members] : groups)
            for (int fold = 0; fold < kFolds; ++fold) {
                std::vector<ResidualPoint> seen;
                for (const std::size_t i : members)
                    if (fold_of(points[i], how) != fold)
                        seen.push_back(residual_of(points[i], models[i]));
                const ResidualSurface surface(seen, {1, 0.2, 0.07});
                for (const std::size_t i : members) {
                    const FusedMoePoint& point = points[i];
                    if (fold_of(point, how) != fold) continue;
                    rows.push_back(
                        {point.id, "moe_forward", point.gpu, std::string(name_of(point.precision)),
                         fmt::format("{} tokens, {} of {} experts", point.tokens,
                                     point.local_experts, point.num_experts),
                         how == HoldOut::point ? "point" : "curve",
                         point.exponent == 0 ? "balanced" : "skewed", point.seconds,
                         models[i].value * surface.ratio(residual_of(point, models[i]).shape)});
                }
            }
}

/// Products and bandwidths that no curve was made from: the shipped profile answers.
void predict_single(const KernelTables& tables, std::vector<HeldOutRow>& rows) {
    std::map<std::string, Profile> shipped;
    const auto profile_of = [&](const std::string& gpu) -> const Profile& {
        const auto [at, added] = shipped.try_emplace(gpu);
        if (added) {
            at->second = load_profile(gpu);
            at->second.calibration = Calibration{};
        }
        return at->second;
    };
    for (std::size_t i = 0; i < tables.single.size(); ++i) {
        const KernelPoint& point = tables.single[i];
        const Kind kind{"gemm", "gemm", tables.single_precision[i], {"m", "n", "k"}, nullptr};
        rows.push_back(
            {point.id, "gemm", point.gpu, std::string(name_of(kind.precision)),
             words_of(kind, point), "source", "", point.seconds,
             kernel_time(profile_of(point.gpu), kind.kernel, kind.precision, shape_of(kind, point))
                 .time.value});
    }
    for (HeldOutRow row : tables.bandwidth) {
        const Roofline& roofline = profile_of(row.gpu).roofline;
        row.predicted = roofline.memory_bandwidth.value * roofline.memory_efficiency;
        rows.push_back(row);
    }
}

}  // namespace

HeldOutAnswers predict_kernel_records(const std::vector<CurveRecord>& records) {
    const KernelTables tables = kernel_tables(records);
    HeldOutAnswers answers;
    answers.skipped = tables.skipped;
    Bare bare;
    const std::vector<std::string> attention = {"batch", "sequence", "num_heads", "num_kv_heads",
                                                "head_size"};
    for (const Kind& kind :
         {Kind{"gemm", "gemm", Precision::bf16, {"m", "n", "k"}, &tables.gemm},
          Kind{"gemm", "gemm", Precision::fp8, {"m", "n", "k"}, &tables.gemm_fp8},
          Kind{"attention", "attention_forward", Precision::bf16, attention, &tables.attention}})
        predict_kind(bare, kind, answers.rows);
    predict_fused(bare, tables.fused, answers.rows);
    predict_single(tables, answers.rows);
    return answers;
}

}  // namespace moeplan
