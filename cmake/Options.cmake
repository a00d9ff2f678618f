set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

foreach(part CUDA NCCL MPI)
  set(MOEPLAN_${part} AUTO CACHE STRING "AUTO: use it where it is found; ON: missing is an error; OFF: do without")
  set_property(CACHE MOEPLAN_${part} PROPERTY STRINGS AUTO ON OFF)
endforeach()
option(MOEPLAN_BENCHMARKS "Build the Google Benchmark programs" OFF)
option(MOEPLAN_WERROR "Warnings are errors" OFF)
set(MOEPLAN_SANITIZE "" CACHE STRING "address,undefined or thread: whole-program sanitizers")
set(MOEPLAN_CUDA_ARCHITECTURES "90a-real" CACHE STRING "GPU architectures of the CUDA module")

# Warnings and sanitizers of our own code; every target of ours links this privately.
add_library(moeplan_flags INTERFACE)
target_compile_options(moeplan_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-missing-field-initializers -ffp-contract=off>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${MOEPLAN_WERROR}>>:-Werror>)
if(MOEPLAN_SANITIZE)
  add_compile_options(-fsanitize=${MOEPLAN_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${MOEPLAN_SANITIZE})
endif()

# moeplan_library(<row of the folder table> SOURCES … PUBLIC … PRIVATE …): target moeplan_<row>, alias moeplan::<row>.
function(moeplan_library name)
  cmake_parse_arguments(PARSE_ARGV 1 A "" "" "SOURCES;PUBLIC;PRIVATE")
  add_library(moeplan_${name} STATIC ${A_SOURCES})
  add_library(moeplan::${name} ALIAS moeplan_${name})
  target_include_directories(moeplan_${name} PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(moeplan_${name} PUBLIC ${A_PUBLIC} PRIVATE moeplan_flags ${A_PRIVATE})
endfunction()
