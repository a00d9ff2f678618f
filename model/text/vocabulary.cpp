#include "model/text/vocabulary.hpp"

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <unordered_map>

#include "core/errors.hpp"
#include "core/text.hpp"
#include "model/text/token_data.hpp"

namespace moeplan {
namespace {

constexpr std::size_t kTrainingBytes = 2'000'000;
constexpr std::size_t kLongestLine = 4000;  ///< SentencePiece leaves longer ones out

/// Lines of the texts, an even sample of them when there are many.
class SampledLines : public sentencepiece::SentenceIterator {
  public:
    explicit SampledLines(const std::vector<std::string_view>& texts) {
        std::size_t total = 0;
        for (const auto text : texts) total += text.size();
        // Whole documents, spread evenly over all: document i is taken when the running share of
        // bytes falls behind.
        std::size_t seen = 0, taken = 0;
        const double share = total > kTrainingBytes
                                 ? static_cast<double>(kTrainingBytes) / static_cast<double>(total)
                                 : 1.0;
        for (const auto text : texts) {
            seen += text.size();
            if (static_cast<double>(taken) > share * static_cast<double>(seen)) continue;
            taken += text.size();
            for (std::size_t begin = 0; begin < text.size();) {
                const std::size_t end = std::min(text.find('\n', begin), text.size());
                if (end > begin && end - begin < kLongestLine)
                    lines_.push_back(std::string(text.substr(begin, end - begin)));
                begin = end + 1;
            }
        }
    }
    bool done() const override { return at_ >= lines_.size(); }
    void Next() override { ++at_; }
    const std::string& value() const override { return lines_[at_]; }
    sentencepiece::util::Status status() const override { return {}; }
    std::size_t count() const { return lines_.size(); }

  private:
    std::vector<std::string> lines_;
    std::size_t at_ = 0;
};

}  // namespace

struct Vocabulary::Model {
    std::string content;
    sentencepiece::SentencePieceProcessor processor;
    int end_id = 0;  ///< of SentencePiece; −1: none
    int newline_id = -1;

    std::uint16_t ours(int id) const {
        if (end_id < 0) return static_cast<std::uint16_t>(id + 1);
        return static_cast<std::uint16_t>(id == end_id ? 0 : id == 0 ? end_id : id);
    }
    int theirs(std::uint16_t id) const {
        return end_id < 0 ? id - 1 : id == 0 ? end_id : id == end_id ? 0 : id;
    }
};

Vocabulary::Vocabulary(std::string content, const std::string& name)
    : model_(std::make_unique<Model>()) {
    model_->content = std::move(content);
    const auto status = model_->processor.LoadFromSerializedProto(model_->content);
    if (!status.ok() || model_->processor.GetPieceSize() < 2)
        throw InputError(name, "", "", "a SentencePiece model (.model)");
    model_->end_id = model_->processor.eos_id();
    const int newline = model_->processor.PieceToId("\n");
    if (newline != model_->processor.unk_id()) model_->newline_id = newline;
    if (size() > 65536)
        throw InputError(name, "pieces", std::to_string(size()),
                         "at most 65536 (token ids are 16 bits wide)");
}

Vocabulary::Vocabulary(Vocabulary&&) noexcept = default;
Vocabulary& Vocabulary::operator=(Vocabulary&&) noexcept = default;
Vocabulary::~Vocabulary() = default;

int Vocabulary::size() const {
    return model_->processor.GetPieceSize() + (model_->end_id < 0 ? 1 : 0);
}
const std::string& Vocabulary::content() const { return model_->content; }

std::vector<std::uint16_t> Vocabulary::encode(std::string_view text) const {
    std::vector<std::uint16_t> out;
    std::vector<int> ids;
    const auto add = [&](std::string_view part) {
        if (part.empty()) return;
        model_->processor.Encode(part, &ids).IgnoreError();
        for (const int id : ids) out.push_back(model_->ours(id));
    };
    if (model_->newline_id < 0) {
        add(text);
        return out;
    }
    // A piece never spans a line feed, and byte-pair encoding of short texts is much faster.
    for (std::size_t begin = 0; begin <= text.size();) {
        const std::size_t end = std::min(text.find('\n', begin), text.size());
        add(text.substr(begin, end - begin));
        if (end < text.size()) out.push_back(model_->ours(model_->newline_id));
        begin = end + 1;
    }
    return out;
}

std::string Vocabulary::decode(const std::vector<std::uint16_t>& ids) const {
    std::string out;
    std::vector<int> run;
    const auto flush = [&] {
        std::string text;
        if (!run.empty()) model_->processor.Decode(run, &text).IgnoreError();
        out += text;
        run.clear();
    };
    for (const std::uint16_t id : ids) {
        if (id >= size()) continue;
        if (id == kEndOfDocument) {
            flush();
            out += '\f';
        } else {
            run.push_back(model_->theirs(id));
        }
    }
    flush();
    return out;
}

Vocabulary train_vocabulary(const std::vector<std::string_view>& texts, int size) {
    if (size < 300 || size > 65536)
        throw InputError("--vocabulary-size", "", std::to_string(size),
                         "300 … 65536 (256 pieces are single bytes)");
    SampledLines lines(texts);
    std::string content;
    const std::unordered_map<std::string, std::string> settings = {
        {"model_type", "bpe"},
        {"vocab_size", std::to_string(size)},
        {"eos_id", "0"},
        {"unk_id", "1"},
        {"bos_id", "-1"},
        {"pad_id", "-1"},
        {"byte_fallback", "true"},
        {"user_defined_symbols", "\n"},
        {"normalization_rule_name", "identity"},
        {"remove_extra_whitespaces", "false"},
        {"add_dummy_prefix", "false"},
        {"allow_whitespace_only_pieces", "true"},
        {"character_coverage", "0.9995"},
        {"max_sentence_length", std::to_string(kLongestLine)},
        {"num_threads", "1"},
        {"hard_vocab_limit", "false"},
        {"minloglevel", "3"}};
    const auto status = sentencepiece::SentencePieceTrainer::Train(settings, &lines, &content);
    if (!status.ok())
        throw InputError("--data", std::to_string(lines.count()) + " lines", "too few",
                         "text for a vocabulary of " + std::to_string(size) +
                             " (SentencePiece says: " + std::string(status.message()) + ")");
    return Vocabulary(std::move(content), "the trained vocabulary");
}

}  // namespace moeplan
