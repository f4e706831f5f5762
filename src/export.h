// FASTOPS_API marks what libfastops shows to other libraries; everything else is hidden.
#pragma once

#if defined(_WIN32)
#ifdef FASTOPS_BUILDING
#define FASTOPS_API __declspec(dllexport)
#else
#define FASTOPS_API __declspec(dllimport)
#endif
#else
#define FASTOPS_API __attribute__((visibility("default")))
#endif
