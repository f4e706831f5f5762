// FASTOPS_API marks what libfastops shows to other libraries, FASTOPS_KERNELS_API what the libraries of kernels show;
// everything else is hidden.
#pragma once

#if defined(_WIN32)
#ifdef FASTOPS_BUILDING
#define FASTOPS_API __declspec(dllexport)
#else
#define FASTOPS_API __declspec(dllimport)
#endif
#ifdef FASTOPS_KERNELS_BUILDING
#define FASTOPS_KERNELS_API __declspec(dllexport)
#else
#define FASTOPS_KERNELS_API __declspec(dllimport)
#endif
#else
#define FASTOPS_API __attribute__((visibility("default")))
#define FASTOPS_KERNELS_API FASTOPS_API
#endif
