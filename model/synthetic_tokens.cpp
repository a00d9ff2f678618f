#include <algorithm>
#include <cmath>

#include "core/errors.hpp"
#include "model/train.hpp"

namespace moeplan {

/// A token's successor is one of four of its own (drawn by Zipf-like weights), another token of the
/// domain's share of the vocabulary else.
TokenData synthetic_tokens(int vocab_size, std::int64_t num_tokens, int num_domains, Seed seed) {
    if (vocab_size < 8 || vocab_size > 65535)
        throw InputError("synthetic text", "vocab_size", std::to_string(vocab_size), "8 … 65535");
    TokenData data;
    data.vocab_size = vocab_size;
    for (int d = 0; d < num_domains; ++d) data.domains.push_back("synthetic " + std::to_string(d));
    DrawStream stream(derive(seed, "synthetic text"));
    while (std::int64_t(data.tokens.size()) < num_tokens) {
        const auto domain = std::uint16_t(stream.below(std::uint64_t(num_domains)));
        const std::int64_t length = 60 + std::int64_t(stream.exponential() * 200);
        const Seed own = derive(seed, "domain", domain);
        // Half of the vocabulary is common, a slice is the domain's.
        const auto any = [&] {
            const std::uint64_t rank =
                std::uint64_t(std::pow(double(vocab_size - 1), stream.uniform()));
            return std::uint16_t(1 + draw(own, "word", rank) % std::uint64_t(vocab_size - 1));
        };
        std::uint16_t token = any();
        for (std::int64_t i = 0; i < length; ++i) {
            data.tokens.push_back(token);
            const std::uint64_t which = stream.below(8);
            token = which == 7 ? any()
                               : std::uint16_t(1 + draw(own, "next",
                                                        token * 4u + (which < 4    ? 0
                                                                      : which < 6  ? 1
                                                                      : which == 6 ? 2
                                                                                   : 3)) %
                                                       std::uint64_t(vocab_size - 1));
        }
        data.tokens.push_back(kEndOfDocument);
        data.document_ends.push_back(data.tokens.size());
        data.document_domains.push_back(domain);
    }
    data.digest = digest_of(data);
    return data;
}

}  // namespace moeplan
