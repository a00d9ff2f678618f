#include "planner/accuracy/collective_records.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>

#include "core/errors.hpp"
#include "planner/accuracy/deepep.hpp"
#include "planner/accuracy/gpu_names.hpp"
#include "profiler/profile.hpp"
#include "simulator/collective.hpp"

namespace moeplan {
namespace {

constexpr int kFolds = 5;
constexpr double kLeastBytes = 1 << 20;

/// A measured curve inside one domain.
struct Curve {
    std::string id, gpu, collective;
    int num_ranks = 0;
    std::vector<double> bytes, seconds;
};

/// "33M" → 2^25: sizes are powers of two, labelled as the program rounds them.
double labelled_bytes(const std::string& label) {
    char* end = nullptr;
    double value = std::strtod(label.c_str(), &end);
    for (const char unit : {'K', 'M', 'G'}) {
        value *= 1000;
        if (*end == unit) return std::exp2(std::round(std::log2(value)));
    }
    return std::exp2(std::round(std::log2(value / 1e9)));
}

LinkCurve link_curve(const Curve& curve, int without_fold) {
    LinkCurve out{curve.collective, curve.num_ranks,       Basis::published,
                  curve.id,         {"bytes", "median_s"}, {}};
    for (std::size_t i = 0; i < curve.bytes.size(); ++i)
        if (without_fold < 0 || static_cast<int>(i) % kFolds != without_fold)
            out.rows.push_back({curve.bytes[i], curve.seconds[i]});
    return out;
}

Profile links_alone(std::vector<LinkCurve> links) {
    Profile profile;
    profile.name = "links";
    profile.roofline.peak[Precision::bf16] = {1e12};
    profile.roofline.memory_bandwidth = {1e12};
    profile.links = std::move(links);
    prepare(profile);
    return profile;
}

/// H100 and H200 share NVLink 4 and its switch.
std::string sibling(const std::string& gpu) {
    if (gpu == "h100-sxm") return "h200-sxm";
    return gpu == "h200-sxm" ? "h100-sxm" : "";
}

class Predicting {
  public:
    HeldOutAnswers answers;
    std::vector<Curve> curves;

    void read(const CurveRecord& record) {
        const JsonReader workload = record.value.at("workload"),
                         hardware = record.value.at("hardware"),
                         measured = record.value.at("measured");
        const auto skip = [&](const char* rule, const std::string& reason) {
            answers.skipped.push_back({record.id, record.group, record.source, reason, rule});
        };
        const std::string notes = record.value.text_or("notes", "");
        if (notes.find("SUSPECT") != std::string::npos)
            return skip("not_a_target", "its notes call it suspect: a degraded network");
        const auto gpu = gpu_id_of_name(hardware.text_or("gpu", ""));
        if (!gpu) return skip("unknown_gpu", "no GPU with a profile is named");
        const JsonReader value = measured.at("value");
        const std::string metric = measured.at("metric").text();
        if (metric == "time_curve" && value.is_object() && value.has("dispatch_us"))
            return deepep(record, *gpu, workload, hardware, value);
        const auto collective = from_name<Collective>(workload.text_or("collective", ""));
        if (!collective || (metric != "time_curve" && metric != "busbw_curve"))
            return skip("not_a_target", "no curve of one collective over stated sizes");
        if (hardware.count_or("nodes", 1) != 1)
            return skip(
                "one_cluster",
                "across nodes: a point of one cluster, whose fabric the cluster file states");
        Curve curve{
            record.id, *gpu, std::string(name_of(*collective)), hardware.at("gpus").count(2),
            {},        {}};
        const bool labelled = value.has("size");
        const auto sizes = value.at(labelled ? "size" : "size_bytes").items();
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            const double bytes = labelled ? labelled_bytes(sizes[i].text()) : sizes[i].number(1);
            curve.bytes.push_back(bytes);
            curve.seconds.push_back(value.has("time_us")
                                        ? value.at("time_us").at(i).number(1e-9) * 1e-6
                                        : bytes * bus_factor(*collective, curve.num_ranks) /
                                              (value.at("busbw_GBps").at(i).number(1e-9) * 1e9));
        }
        if (labelled)
            other_source(curve);
        else
            curves.push_back(std::move(curve));
    }

    void predict() {
        for (const Curve& curve : curves) {
            for (int fold = 0; fold < kFolds; ++fold)
                add(curve, "point", links_alone({link_curve(curve, fold)}), fold);
            std::vector<LinkCurve> others, siblings;
            for (const Curve& other : curves) {
                if (other.id == curve.id) continue;
                if (other.gpu == curve.gpu) others.push_back(link_curve(other, -1));
                if (other.gpu == sibling(curve.gpu)) siblings.push_back(link_curve(other, -1));
            }
            if (!add(curve, "curve", links_alone(std::move(others)), -1) &&
                !add(curve, "curve", links_alone(std::move(siblings)), -1))
                answers.skipped.push_back(
                    {curve.id, "collectives", "",
                     "no other curve to transfer from: held out by points alone",
                     "curve_transfer"});
        }
    }

  private:
    bool add(const Curve& curve, const char* held_out, const Profile& profile, int fold) {
        bool any = false;
        for (std::size_t i = 0; i < curve.bytes.size(); ++i) {
            // The ends of a curve have one neighbour: nothing to interpolate between.
            const bool end = i == 0 || i + 1 == curve.bytes.size();
            if (curve.bytes[i] < kLeastBytes ||
                (fold >= 0 && (end || static_cast<int>(i) % kFolds != fold)))
                continue;
            const auto time =
                link_time(profile, curve.collective, {curve.bytes[i]}, curve.num_ranks);
            if (!time) continue;
            any = true;
            answers.rows.push_back({curve.id, curve.collective, curve.gpu, "",
                                    fmt::format("{:.0f} bytes", curve.bytes[i]), held_out,
                                    fmt::format("{} ranks", curve.num_ranks), curve.seconds[i],
                                    time->time.value});
        }
        return any;
    }

    void other_source(const Curve& curve) { add(curve, "source", load_profile(curve.gpu), -1); }

    void deepep(const CurveRecord& record, const std::string& gpu, const JsonReader& workload,
                const JsonReader& hardware, const JsonReader& value) {
        DeepEpCall call;
        call.gpu = gpu, call.num_ranks = hardware.at("gpus").count(2),
        call.num_nodes = hardware.at("nodes").count(1);
        call.sms = workload.at("sms").count(1), call.hidden = workload.at("hidden").count(1),
        call.top_k = workload.at("topk").count(1);
        const auto tokens = value.at("tokens").items();
        for (const char* key : {"dispatch_us", "combine_us"})
            for (std::size_t i = 0; i < tokens.size(); ++i) {
                call.combine = key[0] == 'c', call.tokens = tokens[i].count(1);
                const auto time = deepep_time(call);
                if (!time)
                    return answers.skipped.push_back(
                        {record.id, record.group, record.source,
                         "no constants of this GPU and number of nodes", "unknown_gpu"});
                answers.rows.push_back(
                    {record.id, call.combine ? "combine" : "dispatch", gpu, "",
                     fmt::format("{} tokens", call.tokens),
                     deepep_fitted_on(record.id) ? "fitted" : "curve",
                     fmt::format("{} ranks on {} nodes", call.num_ranks, call.num_nodes),
                     value.at(key).at(i).number(1e-9) * 1e-6, time->value});
            }
    }
};

}  // namespace

HeldOutAnswers predict_collective_records(const std::vector<CurveRecord>& records) {
    Predicting predicting;
    for (const CurveRecord& record : records) {
        if (record.group != "collectives") continue;
        try {
            predicting.read(record);
        } catch (const InputError& error) {
            predicting.answers.skipped.push_back(
                {record.id, record.group, record.source, error.what(), "missing"});
        }
    }
    predicting.predict();
    return predicting.answers;
}

}  // namespace moeplan
