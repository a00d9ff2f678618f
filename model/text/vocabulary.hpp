#pragma once
/// A SentencePiece vocabulary, trained or given. Any text can be encoded, and decoding gives it
/// back.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace moeplan {

/// Ids are SentencePiece's own, but for one: the end of a document is id 0 (kEndOfDocument). A
/// model whose end token has another id has the two swapped; a model without one has every id
/// raised by one.
class Vocabulary {
  public:
    /// @param content  of a .model file
    /// @throws InputError if it is none, or has more than 65,536 pieces
    Vocabulary(std::string content, const std::string& name);
    Vocabulary(Vocabulary&&) noexcept;
    Vocabulary& operator=(Vocabulary&&) noexcept;
    ~Vocabulary();

    int size() const;
    const std::string& content() const;                              ///< of the .model file
    std::vector<std::uint16_t> encode(std::string_view text) const;  ///< without an end token
    std::string decode(
        const std::vector<std::uint16_t>& ids) const;  ///< end tokens become form feeds

  private:
    struct Model;
    std::unique_ptr<Model> model_;
};

/// Byte-pair vocabulary with a piece for every byte and one for line feed; same texts, same
/// vocabulary.
/// @param texts  all of them may be given: training reads an even sample of about 2 MB
/// @throws InputError if the texts are too few for that size
Vocabulary train_vocabulary(const std::vector<std::string_view>& texts, int size);

}  // namespace moeplan
