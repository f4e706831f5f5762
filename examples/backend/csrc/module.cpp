// torch_hostmem._C: what the Python side asks of the device.
#include <torch/csrc/utils/pybind.h>

#include "device.h"
#include "generator.h"
#include "memory.h"
#include "metadata.h"

PYBIND11_MODULE(_C, m) {
  m.attr("device_count") = hostmem::device_count;
  m.def("current_device", hostmem::current_device);
  m.def("set_device", hostmem::set_current_device);
  m.def("default_generator", hostmem::default_generator);
  m.def("set_flag", hostmem::set_flag);
  m.def("has_flag", hostmem::has_flag);
}
