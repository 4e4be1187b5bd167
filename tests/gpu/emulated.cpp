// An emulated CUDA device for a CPU build of torch: the host's memory and its kernels as "cuda:0".
//
// It runs every operator that the CPU has, refuses to mix devices as CUDA does, rounds operands of
// products to TF32 where torch's settings allow that, and counts launches and transfers.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>

namespace {

constexpr auto CUDA = c10::DeviceType::CUDA;
const c10::Device DEVICE(CUDA, 0);

// -- counts ---------------------------------------------------------------------------------------

enum Count { LAUNCHES, UPLOADS, READS, WAITS, BYTES, NUM_COUNTS };

struct Operation {
  int64_t launches = 0, bytes = 0;
};

std::mutex mutex;  // backward passes run in a thread of their own
int64_t counts[NUM_COUNTS];
std::map<std::string, Operation> operations;

void count(Count which) {
  const std::lock_guard<std::mutex> lock(mutex);
  ++counts[which];
}

void count_launch(const std::string& name, int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex);
  ++counts[LAUNCHES];
  counts[BYTES] += bytes;
  auto& operation = operations[name];
  ++operation.launches;
  operation.bytes += bytes;
}

void count_read() {  // of a value that the host needs at once
  count(READS);
  count(WAITS);
}

int64_t bytes_of(const at::Tensor& x) {  // an expanded dimension is read once
  if (!x.defined() || !x.is_cuda()) return 0;
  int64_t elements = 1;
  for (int64_t d = 0; d < x.dim(); ++d) elements *= x.stride(d) == 0 ? 1 : x.size(d);
  return elements * x.element_size();
}

// -- memory ---------------------------------------------------------------------------------------

c10::DataPtr allocate_on(c10::Device device, size_t size, c10::DeleterFnPtr deleter) {
  void* data = size ? std::aligned_alloc(64, (size + 63) / 64 * 64) : nullptr;
  return {data, data, deleter, device};
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    auto data = allocate_on(DEVICE, size, &std::free);
    if (size) std::memset(data.get(), 0xFF, size);  // NaN: what is read before it is written shows
    return data;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, size_t size) const override {
    std::memcpy(to, from, size);
  }
} device_allocator;

std::set<const void*> pinned;

void free_pinned(void* data) {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    pinned.erase(data);
  }
  std::free(data);
}

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    auto data = allocate_on(c10::Device(at::kCPU), size, &free_pinned);
    const std::lock_guard<std::mutex> lock(mutex);
    if (size) pinned.insert(data.get());
    return data;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* to, const void* from, size_t size) const override {
    std::memcpy(to, from, size);
  }
} pinned_allocator;

bool is_pinned(const void* data) {
  const std::lock_guard<std::mutex> lock(mutex);
  return pinned.count(data) > 0;
}

at::Tensor on_host(const at::Tensor& x) {  // the same memory
  if (!x.defined() || !x.is_cuda()) return x;
  const auto options = x.options().device(at::kCPU);
  if (x.numel() == 0) return at::empty_strided(x.sizes(), x.strides(), options);
  return at::from_blob(const_cast<void*>(x.const_data_ptr()), x.sizes(), x.strides(),
                       [](void*) {}, options);
}

at::Tensor on_device(const at::Tensor& x) {  // the same memory, which the result owns
  if (!x.defined()) return x;
  auto* owner = new at::Tensor(x);
  c10::DataPtr data(x.storage().mutable_data(), owner,
                    [](void* held) { delete static_cast<at::Tensor*>(held); }, DEVICE);
  c10::Storage storage(c10::Storage::use_byte_size_t(), x.storage().nbytes(), std::move(data),
                       &device_allocator, /*resizable=*/true);
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), x.dtype());
  auto* impl = made.unsafeGetTensorImpl();
  impl->set_storage_offset(x.storage_offset());
  impl->set_sizes_and_strides(x.sizes(), x.strides());
  return made;
}

const at::Tensor& resize_memory(const at::Tensor& x, c10::IntArrayRef shape,
                                std::optional<at::MemoryFormat> format) {
  const size_t size = at::detail::computeStorageNbytesContiguous(shape, x.dtype().itemsize(),
                                                                 x.storage_offset());
  auto* storage = x.storage().unsafeGetStorageImpl();
  if (storage->nbytes() < size) {
    auto data = device_allocator.allocate(size);
    if (storage->nbytes()) std::memcpy(data.get(), storage->data(), storage->nbytes());
    storage->set_data_ptr(std::move(data));
    storage->set_nbytes(size);
  }
  x.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  if (format) x.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return x;
}

// -- launches -------------------------------------------------------------------------------------

bool starts_with(const std::string& text, const char* start) { return text.rfind(start, 0) == 0; }

// Operators whose result has a size that the host must know.
bool waits_for_size(const std::string& name) {
  static const std::set<std::string> names{
      "aten::nonzero",  "aten::masked_select", "aten::_unique2", "aten::unique_dim",
      "aten::bincount", "aten::repeat_interleave", "aten::unique_consecutive"};
  return names.count(name) > 0;
}

bool is_product(const std::string& name) {
  static const std::set<std::string> names{
      "aten::mm",      "aten::addmm",       "aten::bmm",
      "aten::baddbmm", "aten::convolution", "aten::convolution_backward"};
  return names.count(name) > 0;
}

// TF32 has ten bits of mantissa: half to even, as tensor cores get their operands.
at::Tensor to_tf32(const at::Tensor& x) {
  if (!x.defined() || x.scalar_type() != at::kFloat) return x;
  auto bits = x.clone().view(at::kInt);
  auto odd = bits.bitwise_right_shift(13).bitwise_and(1);
  return bits.add(odd).add(0xFFF).bitwise_and(~0x1FFF).view(at::kFloat);
}

bool allows_tf32(const std::string& name) {
  const bool is_convolution = starts_with(name, "aten::convolution");
  return at::globalContext().float32Precision(
             at::Float32Backend::CUDA,
             is_convolution ? at::Float32Op::CONV : at::Float32Op::MATMUL) ==
         at::Float32Precision::TF32;
}

// Raises for a host tensor unless CUDA takes it: a number, or an index, which is uploaded.
void check_device(const std::string& name, const at::Tensor& x, bool is_list) {
  if (!x.defined() || x.is_cuda()) return;
  if (name == "aten::index" || starts_with(name, "aten::index_put") ||
      starts_with(name, "aten::_index_put")) {
    count(UPLOADS);
    count(WAITS);
    return;
  }
  TORCH_CHECK(x.dim() == 0 && !is_list,
              "Expected all tensors to be on the same device, but found at least two devices, "
              "cuda:0 and cpu! (emulated, in ", name, ")");
}

struct Changed {  // an argument that the operator writes
  at::Tensor ours, host;
};

class Launch {
 public:
  Launch(const c10::OperatorHandle& op, torch::jit::Stack* stack)
      : schema_(op.schema()), name_(schema_.name()), stack_(stack) {}

  void run(const c10::OperatorHandle& op) {
    take_arguments();
    if (is_product(name_) && allows_tf32(name_)) round_operands();
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack_);
    write_back();
    give_results();
    count_launch(name_, bytes_);
    if (waits_for_size(name_)) count_read();
  }

 private:
  at::Tensor take(const at::Tensor& x, bool is_written, bool is_list) {
    check_device(name_, x, is_list);
    if (x.defined() && x.is_cuda() && starts_with(name_, "aten::index") &&
        (x.scalar_type() == at::kBool || x.scalar_type() == at::kByte) && is_list) {
      count_read();  // a mask: the number of its elements
    }
    auto host = on_host(x);
    if (is_written && x.defined() && x.is_cuda()) changed_.push_back({x, host});
    return host;
  }

  void take_arguments() {
    const auto& arguments = schema_.arguments();
    const size_t first = stack_->size() - arguments.size();
    for (size_t i = 0; i < arguments.size(); ++i) {
      auto& value = (*stack_)[first + i];
      const auto* alias = arguments[i].alias_info();
      const bool is_written = alias && alias->isWrite();
      const bool is_output = is_written && (arguments[i].is_out() || name_ == "aten::fill_" ||
                                            name_ == "aten::zero_");
      if (value.isTensor()) {
        if (!is_output) bytes_ += bytes_of(value.toTensor());
        value = take(value.toTensor(), is_written, false);
      } else if (value.isTensorList()) {
        auto taken = c10::List<at::Tensor>();
        for (at::Tensor x : value.toTensorList()) {
          bytes_ += bytes_of(x);
          taken.push_back(take(x, is_written, true));
        }
        value = taken;
      } else if (value.isOptionalTensorList()) {
        auto taken = c10::List<std::optional<at::Tensor>>();
        for (std::optional<at::Tensor> x : value.toOptionalTensorList()) {
          if (x) bytes_ += bytes_of(*x);
          taken.push_back(x ? std::optional<at::Tensor>(take(*x, is_written, true)) : x);
        }
        value = taken;
      } else if (value.isDevice()) {
        value = c10::Device(at::kCPU);
      }
    }
  }

  void round_operands() {
    const size_t first = stack_->size() - schema_.arguments().size();
    const bool has_sum = name_ == "aten::addmm" || name_ == "aten::baddbmm";
    const size_t from = has_sum ? 1 : 0, num = name_ == "aten::convolution_backward" ? 3 : 2;
    for (size_t i = from; i < from + num; ++i) {
      auto& value = (*stack_)[first + i];
      value = to_tf32(value.toTensor());
    }
  }

  void write_back() {  // an output may have got another size, and memory of its own
    for (auto& [ours, host] : changed_) {
      if (ours.sizes() != host.sizes()) resize_memory(ours, host.sizes(), std::nullopt);
      if (host.numel() && ours.const_data_ptr() != host.const_data_ptr()) {
        on_host(ours).copy_(host);
      }
    }
  }

  at::Tensor give(const at::Tensor& x) {
    for (auto& [ours, host] : changed_) {
      if (x.is_same(host)) return ours;
    }
    return on_device(x);
  }

  void give_results() {
    const size_t first = stack_->size() - schema_.returns().size();
    for (size_t i = first; i < stack_->size(); ++i) {
      auto& value = (*stack_)[i];
      if (value.isTensor()) {
        auto given = give(value.toTensor());
        bytes_ += bytes_of(given);
        value = given;
      } else if (value.isTensorList()) {
        auto given = c10::List<at::Tensor>();
        for (at::Tensor x : value.toTensorList()) {
          given.push_back(give(x));
          bytes_ += bytes_of(given.get(given.size() - 1));
        }
        value = given;
      } else {
        count_read();  // a number, such as that of `equal`
      }
    }
  }

  const c10::FunctionSchema& schema_;
  const std::string name_;
  torch::jit::Stack* stack_;
  std::vector<Changed> changed_;
  int64_t bytes_ = 0;
};

void launch(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  for (const auto& result : op.schema().returns()) {
    const auto* alias = result.alias_info();
    TORCH_CHECK(!alias || alias->isWrite(), "the emulated device has no view ", op.schema().name());
  }
  Launch(op, stack).run(op);
}

// -- operators of the device itself ---------------------------------------------------------------

at::Tensor empty(c10::IntArrayRef shape, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(shape, &device_allocator,
                                   c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef shape, c10::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(shape, stride, &device_allocator,
                                           c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                           c10::dtype_or_default(dtype));
}

at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  if (to.numel() == 0) return to;
  if (to.is_cuda() && from.is_cuda()) {
    count_launch("aten::copy_", bytes_of(to) + bytes_of(from));
  } else {
    const bool is_upload = to.is_cuda();
    count(is_upload ? UPLOADS : READS);
    // CUDA takes up to 64 KiB along with the command
    const bool is_free = is_upload && from.numel() * from.element_size() <= 64 << 10;
    if (!non_blocking || !(is_free || is_pinned((is_upload ? from : to).storage().data()))) {
      count(WAITS);
    }
  }
  on_host(to).copy_(on_host(from));
  return to;
}

at::Tensor copy_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) resize_memory(to, from.sizes(), std::nullopt);
  if (to.numel()) on_host(to).copy_(on_host(from));
  return to;
}

at::Scalar local_scalar(const at::Tensor& x) {
  count_read();
  return on_host(x).item();
}

at::Tensor as_strided(const at::Tensor& x, c10::IntArrayRef shape, c10::IntArrayRef stride,
                      std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(x, shape, stride, offset);
}

at::Tensor view(const at::Tensor& x, c10::IntArrayRef shape) { return at::native::view(x, shape); }

at::Tensor reshape_alias(const at::Tensor& x, c10::IntArrayRef shape, c10::IntArrayRef stride) {
  return at::native::_reshape_alias(x, shape, stride);
}

at::Tensor unfold(const at::Tensor& x, int64_t dim, int64_t size, int64_t step) {
  return at::native::unfold(x, dim, size, step);
}

at::Tensor& set_storage(at::Tensor& x, at::Storage storage, int64_t offset,
                        c10::IntArrayRef shape, c10::IntArrayRef stride) {
  return at::native::set_storage_cpu_(x, std::move(storage), offset, shape, stride);
}

at::Tensor& set_whole_storage(at::Tensor& x, at::Storage storage) {
  const int64_t size = storage.nbytes() / x.dtype().itemsize();
  return set_storage(x, std::move(storage), 0, {size}, {});
}

// Products of attention by the formula: the fused ones of a CPU have other names than a GPU's.
int64_t attention_choice(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                         const std::optional<at::Tensor>&, double, bool, std::optional<double>,
                         bool) {
  return 0;
}

// -- the device -----------------------------------------------------------------------------------

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return CUDA; }
  c10::Stream stream() const { return c10::Stream(c10::Stream::DEFAULT, DEVICE); }
  c10::Device exchangeDevice(c10::Device) const override { return DEVICE; }
  c10::Device getDevice() const override { return DEVICE; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(); }
  c10::Stream getNewStream(c10::Device, int) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const override { return stream(); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void** event, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    static int recorded;
    *event = &recorded;
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override { count(WAITS); }
  void synchronizeEvent(void*) const override { count(WAITS); }
  void synchronizeDevice(const c10::DeviceIndex) const override { count(WAITS); }
};

}  // namespace

namespace at {  // where the registry of hooks is

struct EmulatedHooks final : CUDAHooksInterface {
  explicit EmulatedHooks(CUDAHooksArgs) {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  void init() const override {}
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  DeviceIndex current_device() const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  int getNumGPUs() const override { return 1; }
  std::string showConfig() const override { return "  - an emulated CUDA device\n"; }
  void deviceSynchronize(DeviceIndex) const override { count(WAITS); }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  Allocator* getCUDADeviceAllocator() const override { return &device_allocator; }
  Device getDeviceFromPtr(void*) const override { return DEVICE; }
  const Generator& getDefaultGenerator(DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  Generator getNewGenerator(DeviceIndex) const override {
    return at::detail::createCPUGenerator();
  }
};

REGISTER_ALLOCATOR(c10::DeviceType::CUDA, &device_allocator);
C10_REGISTER_GUARD_IMPL(CUDA, Guard);
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, EmulatedHooks);

}  // namespace at

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&launch>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("copy_", &copy);
  library.impl("_copy_from_and_resize", &copy_and_resize);
  library.impl("_local_scalar_dense", &local_scalar);
  library.impl("as_strided", &as_strided);
  library.impl("view", &view);
  library.impl("_reshape_alias", &reshape_alias);
  library.impl("unfold", &unfold);
  library.impl("resize_", &resize_memory);
  library.impl("set_.source_Storage_storage_offset", &set_storage);
  library.impl("set_.source_Storage", &set_whole_storage);
  library.impl("_fused_sdp_choice", &attention_choice);
  // made of other operators unless a device has its own
  library.impl("convolution", torch::CppFunction::makeFromBoxedFunction<&launch>());
  library.impl("convolution_backward", torch::CppFunction::makeFromBoxedFunction<&launch>());
}

extern "C" void emulated_counts(int64_t* out) {
  const std::lock_guard<std::mutex> lock(mutex);
  std::memcpy(out, counts, sizeof(counts));
}

// A kernel that ran on the device's memory from outside.
extern "C" void emulated_launch(const char* name, int64_t bytes) { count_launch(name, bytes); }

// Lines of "name launches bytes"; returns how many bytes they take.
extern "C" size_t emulated_operations(char* out, size_t size) {
  std::string text;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    for (const auto& [name, operation] : operations) {
      text += name + " " + std::to_string(operation.launches) + " " +
              std::to_string(operation.bytes) + "\n";
    }
  }
  std::memcpy(out, text.data(), std::min(size, text.size()));
  return text.size();
}
