# Libraries that stand in for those of a vendor, for tests only: nothing here is installed. Each has the file name by
# which the product finds the real one.
add_custom_target(fakes)
set(fakes_folder "${CMAKE_BINARY_DIR}/fakes")

# name: of the target; soname: of the file; then sources
function(add_fake name soname)
  add_library(${name} SHARED ${ARGN})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests/fakes ${CMAKE_SOURCE_DIR}/core)
  target_link_libraries(${name} PRIVATE Threads::Threads ${CMAKE_DL_LIBS} farandole_options)
  # Its threads run until the process ends, so it stays loaded.
  target_link_options(${name} PRIVATE -Wl,-z,nodelete -Wl,-soname,${soname})
  set_target_properties(${name} PROPERTIES PREFIX "" OUTPUT_NAME ${soname} SUFFIX "" NO_SONAME ON
                        LIBRARY_OUTPUT_DIRECTORY "${fakes_folder}" BUILD_RPATH_USE_ORIGIN ON)
  add_dependencies(fakes ${name})
endfunction()

file(GLOB fake_cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/fakes/cuda/*.cpp)
add_fake(fake_cuda libcuda.so.1 ${fake_cuda_sources} ${CMAKE_SOURCE_DIR}/tests/fakes/faults.cpp)

file(GLOB fake_nccl_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/fakes/nccl/*.cpp)
add_fake(fake_nccl libnccl.so.2 ${fake_nccl_sources} ${CMAKE_SOURCE_DIR}/tests/fakes/faults.cpp)
target_link_libraries(fake_nccl PRIVATE fake_cuda)

# For a C++ test. They are linked, so a plain dlopen("libcuda.so.1") finds one loaded, and needs no LD_LIBRARY_PATH.
function(use_fakes test)
  target_include_directories(${test} PRIVATE ${CMAKE_SOURCE_DIR}/tests/fakes)
  target_compile_definitions(${test} PRIVATE FARANDOLE_FAKES="${fakes_folder}")
  target_link_libraries(${test} PRIVATE -Wl,--no-as-needed fake_cuda fake_nccl)
  add_dependencies(${test} fakes)
endfunction()
