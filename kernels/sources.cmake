# What the full build and kernels/standalone have in common: the sources of the CPU backend and of what opens the others.
set(kernels_sources
  backend.cpp caching_allocator.cpp communicator.cpp graphed_calls.cpp kernel_rows.cpp machine_pace.cpp nccl/nccl_communicator.cpp
  cpu/cpu_backend.cpp cpu/fused.cpp cpu/gemm.cpp cpu/permutation_map.cpp cpu/rotation_table.cpp)

# The loops of the CPU backend, compiled once for each instruction set and chosen at run time: one binary runs anywhere. No -ffast-math:
# a NaN must be seen, and bytes repeat (sums have a fixed order of lanes). Their objects: `cpu_loops`.
if(NOT loop_optimisation)
  set(loop_optimisation -O3)
endif()
set(loop_flags ${loop_optimisation} -fno-math-errno -fno-trapping-math)
set(flags_baseline)
set(flags_avx2 -mavx2 -mfma)
set(flags_avx512 -mavx512f -mavx512dq -mavx512bw -mavx512vl -mavx2 -mfma -mprefer-vector-width=512)
set(cpu_loops)
foreach(isa baseline avx2 avx512)
  add_library(moeplan_cpu_${isa} OBJECT ${CMAKE_CURRENT_LIST_DIR}/cpu/vector_kernels.cpp)
  target_include_directories(moeplan_cpu_${isa} PRIVATE ${CMAKE_CURRENT_LIST_DIR}/..)
  target_compile_definitions(moeplan_cpu_${isa} PRIVATE MOEPLAN_ISA=${isa})
  target_link_libraries(moeplan_cpu_${isa} PRIVATE moeplan_flags)
  if(isa STREQUAL baseline OR CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    target_compile_options(moeplan_cpu_${isa} PRIVATE ${loop_flags} ${flags_${isa}})
  endif()
  list(APPEND cpu_loops $<TARGET_OBJECTS:moeplan_cpu_${isa}>)
endforeach()
