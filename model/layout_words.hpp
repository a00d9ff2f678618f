#pragma once
/// A layout as people give it: a file, and flags that replace or refine it. What they left out is
/// assumed by stated rules.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/errors.hpp"
#include "core/json.hpp"
#include "model/check.hpp"
#include "model/model_spec.hpp"
#include "model/parallel_layout.hpp"
#include "model/step_schedule.hpp"

namespace moeplan {

/// The words of a layout: JSON keys = the flags' names with `_` for `-` ("micro_batch" → "4").
/// Values as text; lists with commas.
struct LayoutWords : std::map<std::string, std::string> {
    using std::map<std::string, std::string>::map;

    /// Where a word of a file stands, for messages; a word without a place was a flag.
    struct Place {
        std::string file, pointer;
    };
    std::map<std::string, Place> places;

    /// A flag replaces what the file said.
    void replace(const std::string& key, const std::string& value);
};

/// @param name_or_file  own JSON (keys = flags), a Megatron layout string (`Et|(tt|)*30mL`), or a
/// Megatron launch script's layout part
LayoutWords read_layout_words(const std::string& name_or_file);
/// The words of a layout inside a document: a plan's candidate, a case.
/// @throws InputError  at a key that is no flag, or one that `words` has already with another value
void add_layout_words(const JsonReader& layout, LayoutWords& words);
/// The same error, at the place of the file that the flag it names came from, if it came from one.
InputError at_its_place(const InputError&, const LayoutWords&);
/// A broken rule as a refusal: at the word it speaks of, with what would do.
/// @param otherwise  the file, or what else stands for a word that was not given
InputError refusal(const Finding&, const LayoutWords&, const std::string& otherwise);

/// The flags that make up a layout, with one line of help each: the CLI offers exactly these.
struct LayoutFlag {
    std::string key, help;
    bool is_switch = false;
};
const std::vector<LayoutFlag>& layout_flags();

struct ResolvedLayout {
    ParallelLayout layout;
    StepSchedule schedule;
    std::vector<Finding> assumed;  ///< what the user left out and what was taken for it
    std::vector<Finding>
        broken;  ///< words that contradict each other or the world size (nothing silently mended)
    std::map<std::string, std::string> framework_words;  ///< what only a framework's rules need
};

/// Fill in what is missing (dp from the world size; etp by the framework's rule: Megatron without
/// the flag takes ETP = TP; micro-batch 1; …).
/// @param world_size  GPUs of the cluster; empty if no cluster was named
ResolvedLayout resolve_layout(const LayoutWords& words, const ModelSpec& model,
                              std::optional<int> world_size);

/// The flags' names again, complete: what `plan` writes and `--layout` reads.
Json layout_to_json(const ParallelLayout&, const StepSchedule&);

}  // namespace moeplan
