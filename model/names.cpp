/// The names of the model's enumerations, as files and flags spell them.
#include "model/check.hpp"
#include "model/model_spec.hpp"
#include "model/step_schedule.hpp"

namespace moeplan {

template <>
const EnumNames<Activation>& enum_names<Activation>() {
    static const EnumNames<Activation> names = {
        {Activation::relu, "relu"}, {Activation::gelu, "gelu"}, {Activation::swiglu, "swiglu"}};
    return names;
}
template <>
const EnumNames<BalanceScope>& enum_names<BalanceScope>() {
    static const EnumNames<BalanceScope> names = {{BalanceScope::micro_batch, "micro_batch"},
                                                  {BalanceScope::sequence, "sequence"},
                                                  {BalanceScope::global, "global"}};
    return names;
}
template <>
const EnumNames<Norm>& enum_names<Norm>() {
    static const EnumNames<Norm> names = {{Norm::rms, "rms"}, {Norm::layer, "layer"}};
    return names;
}
template <>
const EnumNames<Pipeline>& enum_names<Pipeline>() {
    static const EnumNames<Pipeline> names = {{Pipeline::gpipe, "gpipe"},
                                              {Pipeline::one_f_one_b, "one_f_one_b"},
                                              {Pipeline::one_f_one_b, "1f1b"},
                                              {Pipeline::interleaved, "interleaved"},
                                              {Pipeline::zero_bubble, "zero_bubble"},
                                              {Pipeline::zero_bubble_v, "zero_bubble_v"},
                                              {Pipeline::zero_bubble_v, "zb_v"},
                                              {Pipeline::dual_pipe, "dual_pipe"}};
    return names;
}
template <>
const EnumNames<Sharding>& enum_names<Sharding>() {
    static const EnumNames<Sharding> names = {
        {Sharding::none, "none"},   {Sharding::zero1, "zero1"}, {Sharding::zero2, "zero2"},
        {Sharding::zero3, "zero3"}, {Sharding::none, "0"},      {Sharding::zero1, "1"},
        {Sharding::zero2, "2"},     {Sharding::zero3, "3"}};
    return names;
}
template <>
const EnumNames<Dispatcher>& enum_names<Dispatcher>() {
    static const EnumNames<Dispatcher> names = {
        {Dispatcher::all_gather, "all_gather"},       {Dispatcher::all_to_all, "all_to_all"},
        {Dispatcher::deduplicating, "deduplicating"}, {Dispatcher::all_gather, "allgather"},
        {Dispatcher::all_to_all, "alltoall"},         {Dispatcher::deduplicating, "deepep"},
        {Dispatcher::deduplicating, "hybridep"}};
    return names;
}

template <>
const EnumNames<Verdict>& enum_names<Verdict>() {
    static const EnumNames<Verdict> names = {{Verdict::valid, "valid"},
                                             {Verdict::invalid, "invalid"},
                                             {Verdict::out_of_memory, "out_of_memory"}};
    return names;
}

}  // namespace moeplan
