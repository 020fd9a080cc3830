# Stands for find_package(Python) where the module is for another Python, or for another machine, than the one that
# runs CMake: headers are all that is needed of it. They ask nothing of the machine but the sizes of C's types,
# which are the same on every 64-bit Linux.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter)  # finds nanobind, and does nothing else here

file(STRINGS "${FARANDOLE_PYTHON_INCLUDE}/patchlevel.h" version REGEX "#define PY_VERSION ")
if(NOT version MATCHES "\"([0-9]+\\.[0-9]+)")
  message(FATAL_ERROR "${FARANDOLE_PYTHON_INCLUDE} holds no headers of Python: patchlevel.h names no version.")
endif()
set(Python_VERSION "${CMAKE_MATCH_1}")
set(Python_INTERPRETER_ID Python)
set(Python_INCLUDE_DIRS "${FARANDOLE_PYTHON_INCLUDE}")
add_library(Python::Module INTERFACE IMPORTED)

# nanobind takes the ending of the file from these; without them it would ask the Python that runs.
set(Python_SOSABI abi3)
if(FARANDOLE_PYTHON_ABI STREQUAL "abi3")
  add_library(Python::SABIModule INTERFACE IMPORTED)
  set(Python_SOABI "not-a-module")
elseif(FARANDOLE_PYTHON_ABI)
  set(Python_SOABI "${FARANDOLE_PYTHON_ABI}-${CMAKE_SYSTEM_PROCESSOR}-linux-gnu")
else()
  message(FATAL_ERROR "FARANDOLE_PYTHON_INCLUDE needs FARANDOLE_PYTHON_ABI: abi3, or as in cpython-311.")
endif()
