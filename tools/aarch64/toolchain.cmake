# For CMake: compiles for Linux on aarch64, with Debian's compiler and the headers of the Python of prepare.sh.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
file(GLOB Python_INCLUDE_DIR ${CMAKE_CURRENT_LIST_DIR}/../../build/aarch64/root/usr/include/python3.*)
# Debian's pyconfig.h is for all machines, and includes that of one.
set(CMAKE_CXX_FLAGS_INIT "-idirafter ${Python_INCLUDE_DIR}/..")
