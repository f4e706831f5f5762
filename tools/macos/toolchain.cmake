# For CMake: compiles for macOS on arm64 with Zig, which brings the C and C++ libraries of macOS.
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR arm64)
set(CMAKE_OSX_SYSROOT "")
file(GLOB zig ${CMAKE_CURRENT_LIST_DIR}/../../.venv/lib/python3.*/site-packages/ziglang/zig)
set(CMAKE_CXX_COMPILER ${zig} c++)
set(target "-target aarch64-macos.14.0") # torch's
set(CMAKE_CXX_FLAGS_INIT "${target}")
set(CMAKE_INSTALL_NAME_TOOL llvm-install-name-tool-19)
set(CCACHE OFF CACHE FILEPATH "") # which does not know this compiler
set(CMAKE_USER_MAKE_RULES_OVERRIDE ${CMAKE_CURRENT_LIST_DIR}/rules.cmake)
