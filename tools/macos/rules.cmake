# For CMake: read after what says how things are linked for macOS. Python's modules are bundles there, which Zig does
# not make; of what is looked at here, libraries have the same.
set(CMAKE_SHARED_MODULE_CREATE_CXX_FLAGS "-dynamiclib -Wl,-headerpad_max_install_names")
