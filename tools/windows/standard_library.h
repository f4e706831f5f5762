// The standard library for tools/windows/check.py, in front of every file: LLVM's, over MinGW's headers of Windows,
// which are not written for a compiler that says that it is MSVC.
#pragma once

// clang-format off
#pragma push_macro("_MSC_VER")
#undef _MSC_VER
#define __GNUC__ 12
#define __GNUC_MINOR__ 0
#define __MINGW32__ 1
#define __MINGW64__ 1
// With several empty bases, a class is as small as with MSVC's library.
#include <__config>
#undef _LIBCPP_DECLSPEC_EMPTY_BASES
#define _LIBCPP_DECLSPEC_EMPTY_BASES __declspec(empty_bases)
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <bitset>
#include <cassert>
#include <cctype>
#include <cfloat>
#include <charconv>
#include <chrono>
#include <cinttypes>
#include <climits>
#include <clocale>
#include <cmath>
#include <complex>
#include <concepts>
#include <condition_variable>
#include <csignal>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <exception>
#include <filesystem>
#include <forward_list>
#include <fstream>
#include <functional>
#include <future>
#include <initializer_list>
#include <iomanip>
#include <iosfwd>
#include <iostream>
#include <istream>
#include <iterator>
#include <limits>
#include <list>
#include <locale>
#include <malloc.h>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <optional>
#include <ostream>
#include <queue>
#include <random>
#include <ranges>
#include <regex>
#include <set>
#include <setjmp.h>
#include <shared_mutex>
#include <source_location>
#include <span>
#include <sstream>
#include <stack>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <type_traits>
#include <typeindex>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>
#include <version>
#undef __GNUC__
#undef __GNUC_MINOR__
#undef __MINGW32__
#undef __MINGW64__
#pragma pop_macro("_MSC_VER")
// Clang's intrin.h declares functions of these names.
#undef _alloca
#undef _setjmp
// clang-format on
