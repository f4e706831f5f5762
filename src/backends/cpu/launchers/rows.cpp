// Steps on rows: block by block, all steps for one before the next, so that what lies between them stays in the L1
// cache.
#include <cstring>

#include "backends/cpu/launchers/share.h"

namespace fastops::cpu {
namespace {

constexpr int64_t block_elements = 2048;
// A thread has at least so many elements, and a part with sums of its own so many.
constexpr int64_t least_elements = 4096;
constexpr int64_t elements_of_part = 16384;
constexpr int64_t most_parts = 64;

// What both passes have in common.
class RowSteps {
 public:
  RowSteps(Caller& caller, const RowsCall& call)
      : call_(call),
        block_rows_(std::clamp<int64_t>(block_elements / call.columns, 1, call.rows)),
        block_bytes_((block_rows_ * call.columns * element_size(call.computed) + 63) / 64 * 64),
        weights_(caller, call.steps.size()),
        biases_(caller, call.steps.size()) {
    for (const RowStep& step : call.steps) {
      weights_.push_back(converted(caller, step.weight));
      biases_.push_back(converted(caller, step.bias));
    }
  }

 protected:
  const RowKernels& kernels_of(Dtype dtype) const { return row_kernels(dtype); }
  const RowKernels& kernels() const { return row_kernels(call_.computed); }
  const Kernels& activation(const RowStep& step) const { return cpu::kernels(step.activation, call_.computed); }
  NormArguments norm(size_t i) const { return {call_.steps[i].centered, call_.steps[i].eps, weights_[i], biases_[i]}; }
  DropoutArguments dropout(const RowStep& step) const { return {call_.seed, step.stream, step.threshold, step.scale}; }

  void widen(Typed<ConstRows> source, int64_t row, int64_t rows, bool add, void* block) const {
    kernels_of(source.dtype).widen(from_row(source.rows, row, source.dtype), rows, call_.columns, add, block);
  }
  void narrow(const void* block, int64_t row, int64_t rows, Typed<Rows> target) const {
    if (!target.rows.data) return;
    kernels_of(target.dtype).narrow(block, rows, call_.columns, from_row(target.rows, row, target.dtype));
  }

  // Whether a matrix is a block already, of all rows: what steps read or write need not be copied.
  template <class Matrix>
  bool is_block(const Typed<Matrix>& matrix) const {
    return !call_.steps.empty() && matrix.rows.data && matrix.dtype == call_.computed &&
           matrix.rows.stride == call_.columns;
  }
  // Rows of a matrix as a block: where they lie, or copied to one.
  const void* read(Typed<ConstRows> source, int64_t row, int64_t rows, void* block) const {
    if (is_block(source)) return from_row(source.rows, row, source.dtype).data;
    widen(source, row, rows, /*add=*/false, block);
    return block;
  }
  // Where a block becomes rows of a matrix: their own place, or one from which they are copied.
  void* place(Typed<Rows> target, int64_t row, void* block) const {
    return is_block(target) ? from_row(target.rows, row, target.dtype).data : block;
  }

  // f(row, rows) for each block of rows from `begin` to `end`.
  template <class F>
  void for_each_block(int64_t begin, int64_t end, const F& f) const {
    for (int64_t row = begin; row < end; row += block_rows_) f(row, std::min(block_rows_, end - row));
  }

  const RowsCall& call_;
  int64_t block_rows_;
  int64_t block_bytes_;
  List<const void*> weights_, biases_;  // of each step, in the type that is computed with

 private:
  const void* converted(Caller& caller, RowVector vector) const {
    if (!vector.data || vector.dtype == call_.computed) return vector.data;
    void* const copy = caller.take(call_.columns * element_size(call_.computed));
    kernels_of(vector.dtype).widen({vector.data, 0}, 1, call_.columns, /*add=*/false, copy);
    return copy;
  }
};

class RowsForward : RowSteps {
 public:
  RowsForward(Caller& caller, const RowsCall& call, Typed<ConstRows> x, Typed<ConstRows> added, Typed<Rows> y)
      : RowSteps(caller, call) {
    const int64_t least_rows = std::max<int64_t>(1, least_elements / call.columns);
    const Parts parts(call.rows, std::max(least_rows, (call.rows + caller.threads() - 1) / caller.threads()));
    char* const blocks = static_cast<char*>(caller.take(parts.count * block_bytes_));
    const size_t steps = call.steps.size();
    share(caller, parts.count, 1, [&](int64_t first, int64_t last) {
      for (int64_t part = first; part < last; ++part) {
        void* const block = blocks + part * block_bytes_;
        for_each_block(parts.begin(part), parts.end(part), [&](int64_t row, int64_t rows) {
          const void* value = read(x, row, rows, block);
          void* const result = place(y, row, block);
          for (size_t i = 0; i < steps; ++i) {
            void* const next = i + 1 < steps ? block : result;
            apply(i, value, next, row, rows);
            value = next;
          }
          if (added.rows.data) widen(added, row, rows, /*add=*/true, result);
          if (result == block) narrow(block, row, rows, y);
        });
      }
    });
  }

 private:
  void apply(size_t i, const void* x, void* y, int64_t row, int64_t rows) const {
    const RowStep& step = call_.steps[i];
    const int64_t columns = call_.columns;
    switch (step.kind) {
      case RowStep::Kind::activation:
        return activation(step).forward(x, y, rows * columns, step.params, /*stream=*/false);
      case RowStep::Kind::norm:
        return kernels().normalize(norm(i), x, nullptr, y, nullptr, rows, columns);
      case RowStep::Kind::scale:
        return kernels().scale(x, weights_[i], y, rows, columns);
      case RowStep::Kind::dropout:
        return kernels().dropout(dropout(step), x, nullptr, y, row, rows, columns);
    }
  }
};

class RowsBackward : RowSteps {
 public:
  RowsBackward(Caller& caller, const RowsCall& call, Typed<ConstRows> x, Typed<ConstRows> grad, Typed<ConstRows> added,
               Typed<Rows> dx, Typed<Rows> value, std::span<const RowStepGradients> gradients)
      : RowSteps(caller, call),
        x_(x),
        grad_(grad),
        added_(added),
        dx_(dx),
        value_(value),
        gradients_(gradients),
        row_bytes_((call.columns * element_size(call.computed) + 63) / 64 * 64) {
    // As many sums as there are vectors' gradients.
    for (const RowStepGradients& step : gradients) sums_ += (step.weight != nullptr) + (step.bias != nullptr);
    const int64_t most =
        std::max((call.rows + most_parts - 1) / most_parts, std::max<int64_t>(1, elements_of_part / call.columns));
    const Parts parts(call.rows, most);
    // For each part: a block for what each step starts from, the gradient, the multipliers of norms, the sums.
    const int64_t steps = static_cast<int64_t>(call.steps.size());
    multiplier_bytes_ = (block_rows_ * element_size(call.computed) + 63) / 64 * 64;
    part_bytes_ = (steps + 2) * block_bytes_ + steps * multiplier_bytes_ + sums_ * row_bytes_;
    char* const memory = static_cast<char*>(caller.take(parts.count * part_bytes_));
    share(caller, parts.count, 1, [&](int64_t first, int64_t last) {
      for (int64_t part = first; part < last; ++part) {
        char* const own = memory + part * part_bytes_;
        if (sums_ > 0) std::memset(sums_of(own), 0, sums_ * row_bytes_);
        for_each_block(parts.begin(part), parts.end(part),
                       [&](int64_t row, int64_t rows) { through_block(own, row, rows); });
      }
    });
    if (sums_ > 0) add_up(memory, parts.count);
  }

 private:
  char* block(char* own, size_t i) const { return own + static_cast<int64_t>(i) * block_bytes_; }
  char* multipliers(char* own, size_t i) const {
    return block(own, call_.steps.size() + 2) + static_cast<int64_t>(i) * multiplier_bytes_;
  }
  char* sums_of(char* own) const { return multipliers(own, call_.steps.size()); }

  // What a step starts from.
  const void* input(char* own, size_t i, int64_t row) const {
    return i == 0 && is_block(x_) ? from_row(x_.rows, row, x_.dtype).data : block(own, i);
  }

  void through_block(char* own, int64_t row, int64_t rows) const {
    const size_t steps = call_.steps.size();
    if (x_.rows.data && !is_block(x_)) widen(x_, row, rows, /*add=*/false, block(own, 0));
    for (size_t i = 0; i < steps; ++i) {
      // Each step leaves in its block what its gradient is made of.
      const bool is_needed = i + 1 < steps || value_.rows.data;
      apply(i, own, is_needed && x_.rows.data ? block(own, i + 1) : nullptr, row, rows);
    }
    if (value_.rows.data) narrow(input(own, steps, row), row, rows, value_);
    if (!grad_.rows.data) return;
    void* const between = block(own, steps + 1);
    const void* grad = read(grad_, row, rows, between);
    void* const dx = place(dx_, row, between);
    char* sums = sums_of(own) + sums_ * row_bytes_;
    for (size_t i = steps; i-- > 0;) {
      const auto sums_for = [&](void* gradient) { return gradient ? sums -= row_bytes_ : nullptr; };
      void* const bias_sums = sums_for(gradients_[i].bias);
      void* const weight_sums = sums_for(gradients_[i].weight);
      void* const next = i > 0 ? between : dx;
      apply_backward(i, own, grad, next, weight_sums, bias_sums, row, rows);
      grad = next;
    }
    if (added_.rows.data) widen(added_, row, rows, /*add=*/true, dx);
    if (dx == between) narrow(dx, row, rows, dx_);
  }

  void apply(size_t i, char* own, void* result, int64_t row, int64_t rows) const {
    const RowStep& step = call_.steps[i];
    const int64_t columns = call_.columns;
    const void* const x = input(own, i, row);
    switch (step.kind) {
      case RowStep::Kind::activation:
        if (result) activation(step).forward(x, result, rows * columns, step.params, /*stream=*/false);
        break;
      case RowStep::Kind::norm:
        kernels().normalize(norm(i), x, block(own, i), result, multipliers(own, i), rows, columns);
        break;
      case RowStep::Kind::scale:
        if (result) kernels().scale(x, weights_[i], result, rows, columns);
        break;
      case RowStep::Kind::dropout:
        kernels().dropout(dropout(step), result ? x : nullptr, block(own, i), result, row, rows, columns);
        break;
    }
  }

  void apply_backward(size_t i, char* own, const void* grad, void* dx, void* weight_sums, void* bias_sums, int64_t row,
                      int64_t rows) const {
    const RowStep& step = call_.steps[i];
    const int64_t columns = call_.columns;
    switch (step.kind) {
      case RowStep::Kind::activation:
        activation(step).backward[0](grad, input(own, i, row), dx, rows * columns, step.params, /*stream=*/false);
        break;
      case RowStep::Kind::norm:
        kernels().normalize_backward(norm(i), block(own, i), multipliers(own, i), grad, dx, weight_sums, bias_sums,
                                     rows, columns);
        break;
      case RowStep::Kind::scale:
        if (weight_sums) kernels().add_to_sums(grad, input(own, i, row), weight_sums, rows, columns);
        kernels().scale(grad, weights_[i], dx, rows, columns);
        break;
      case RowStep::Kind::dropout:
        kernels().multiply(grad, block(own, i), dx, rows * columns);
        break;
    }
  }

  // The sums of all parts, in the order of the parts.
  void add_up(char* memory, int64_t parts) const {
    char* const total = sums_of(memory);
    for (int64_t part = 1; part < parts; ++part) {
      const char* const own = total + part * part_bytes_;
      for (int64_t i = 0; i < sums_; ++i) {
        kernels().add_to_sums(own + i * row_bytes_, nullptr, total + i * row_bytes_, 1, call_.columns);
      }
    }
    const char* sums = total;
    for (const RowStepGradients& step : gradients_) {
      for (void* const result : {step.weight, step.bias}) {
        if (!result) continue;
        std::memcpy(result, sums, call_.columns * element_size(call_.computed));
        sums += row_bytes_;
      }
    }
  }

  Typed<ConstRows> x_, grad_, added_;
  Typed<Rows> dx_, value_;
  std::span<const RowStepGradients> gradients_;
  int64_t row_bytes_;
  int64_t multiplier_bytes_;
  int64_t part_bytes_;
  int64_t sums_ = 0;
};

}  // namespace

void rows_forward(Caller& caller, const RowsCall& call, Typed<ConstRows> x, Typed<ConstRows> added, Typed<Rows> y) {
  RowsForward(caller, call, x, added, y);
}

void rows_backward(Caller& caller, const RowsCall& call, Typed<ConstRows> x, Typed<ConstRows> grad,
                   Typed<ConstRows> added, Typed<Rows> dx, Typed<Rows> value,
                   std::span<const RowStepGradients> gradients) {
  RowsBackward(caller, call, x, grad, added, dx, value, gradients);
}

}  // namespace fastops::cpu
