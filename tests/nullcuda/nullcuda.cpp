// A null CUDA: what torch calls of the runtime, the driver, cuBLAS, cuDNN and NVML, on a machine without a GPU.
//
// Nothing is computed. Memory, streams, events and captures are kept account of by CUDA's rules, and each call that a
// test may ask about is counted. Everything above (dispatcher, caching allocator, graphs, pinned copies) is torch's own.
// `build.py` adds a stub that returns success for each other symbol that the installed torch needs.
//
//   NULLCUDA_COUNTS        folder for one file of counts a process (Record x n, then the trace); none: not shared
//   NULLCUDA_OP_NS         device time of an operation (0); a graph takes it once a node
//   NULLCUDA_CAPTURE_NS    host time of instantiating a graph (0)
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cudnn_version.h>
#include <driver_types.h>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>
#include <vector_types.h>
#define API extern "C" __attribute__((visibility("default")))
using Error = int;  // cudaError_t, cublasStatus_t and nvmlReturn_t alike: 0 is success
using Handle = void*;

constexpr size_t TOTAL_BYTES = size_t(139) << 30;
constexpr Error UNSUPPORTED = 900, INVALIDATED = 901, IMPLICIT = 906, NOT_READY = 600, NO_MEMORY = 2;

static int64_t setting(const char* name) {
    const char* value = getenv(name);
    return value ? atoll(value) : 0;
}
static const int64_t CAPTURE_NS = setting("NULLCUDA_CAPTURE_NS");
static int64_t op_ns() {  // longer by the share of multiprocessors that MPS gives the process, set before its first use
    static const int64_t share = setting("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    static const int64_t ns = setting("NULLCUDA_OP_NS") * 100 / (share ? share : 100);
    return ns;
}

static int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::chrono::steady_clock::now().time_since_epoch()).count();
}
static void sleep_until(int64_t ns) {
    if (int64_t left = ns - now_ns(); left > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(left));
}

// ------------------------------------------------------------------------------------------------ counts and trace
// In a file for each process, so that a test reads them of any process, while it runs and after it.
enum Count { launches, graph_launches, captures, captured_nodes, refusals, waits, copies, pageable_copies, mallocs,
             held_bytes, peak_bytes, traced, n_counts };
static const char* NAMES[n_counts] = {"launches", "graph_launches", "captures", "captured_nodes", "refusals", "waits",
    "copies", "pageable_copies", "mallocs", "held_bytes", "peak_bytes", "traced"};
constexpr size_t TRACE = 1 << 16;
struct Record { char name[24]; std::atomic<int64_t> value; };
struct Shared { Record counts[n_counts]; char trace[TRACE]; };

static Shared& shared() {
    static Shared* made = [] {
        const char* folder = getenv("NULLCUDA_COUNTS");
        int file = folder ? open((std::string(folder) + "/" + std::to_string(getpid())).c_str(), O_RDWR | O_CREAT, 0600) : -1;
        if (file >= 0 && ftruncate(file, sizeof(Shared))) abort();
        void* at = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                        file >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, file, 0);
        if (at == MAP_FAILED) abort();
        auto* counts = static_cast<Shared*>(at);
        for (int i = 0; i < n_counts; i++) strncpy(counts->counts[i].name, NAMES[i], 23);
        return counts;
    }();
    return *made;
}
static int64_t add(Count count, int64_t n = 1) { return shared().counts[count].value.fetch_add(n) + n; }
static void trace(char what) { shared().trace[(add(traced) - 1) % TRACE] = what; }

// ---------------------------------------------------------------------------------------------- streams and captures
struct Graph { int nodes = 0; };
struct Stream { int64_t until_ns = 0; Graph* graph = nullptr; bool is_broken = false; int mode = 0;
                unsigned long long id = 0; std::thread::id owner; };
static std::mutex lock;
static Stream default_stream;
static std::set<Stream*> streams{&default_stream};
static thread_local Error last = 0;
static thread_local int thread_mode = cudaStreamCaptureModeGlobal;

static Stream* stream_of(Handle handle) {  // 0, 1 and 2 are the default stream's names
    return uintptr_t(handle) <= 2 ? &default_stream : static_cast<Stream*>(handle);
}
static Error fail(Error error) { return last = error; }
static Error break_capture(Stream* stream, Error error) {
    add(refusals);
    stream->is_broken = true;
    return fail(error);
}

// What may wait for the whole device, or allocate, is refused while a capture runs that forbids it to this thread.
static Error require_no_capture() {
    std::lock_guard<std::mutex> held(lock);
    if (thread_mode == cudaStreamCaptureModeRelaxed) return 0;
    for (auto* stream : streams)
        if (stream->graph && (stream->mode == cudaStreamCaptureModeGlobal ||
            (stream->mode == cudaStreamCaptureModeThreadLocal && stream->owner == std::this_thread::get_id())))
            return break_capture(stream, UNSUPPORTED);
    return 0;
}

static Error enqueue(Handle handle, Count count, char letter, int nodes = 1) {
    std::lock_guard<std::mutex> held(lock);
    Stream* stream = stream_of(handle);
    if (stream->graph) { stream->graph->nodes += nodes; add(captured_nodes, nodes); return 0; }
    if (stream == &default_stream)  // it would depend on each stream that blocks it
        for (auto* other : streams)
            if (other->graph && other->mode == cudaStreamCaptureModeGlobal) return break_capture(other, IMPLICIT);
    add(count);
    trace(letter);
    stream->until_ns = std::max(now_ns(), stream->until_ns) + nodes * op_ns();
    return 0;
}
static Error launch(Handle stream) { return enqueue(stream, launches, 'k'); }
static int64_t device_until_ns() {
    std::lock_guard<std::mutex> held(lock);
    int64_t until = 0;
    for (auto* stream : streams) until = std::max(until, stream->until_ns);
    return until;
}
static Error wait_until(int64_t ns) { add(waits); trace('w'); sleep_until(ns); return 0; }

static Error make_stream(Handle* out) {
    std::lock_guard<std::mutex> held(lock);
    auto* stream = new Stream;
    streams.insert(stream);
    *out = stream;
    return 0;
}
API Error cudaStreamCreate(Handle* out) { return make_stream(out); }
API Error cudaStreamCreateWithFlags(Handle* out, unsigned) { return make_stream(out); }
API Error cudaStreamCreateWithPriority(Handle* out, unsigned, int) { return make_stream(out); }
API Error cudaStreamQuery(Handle s) { return now_ns() >= stream_of(s)->until_ns ? 0 : NOT_READY; }
API Error cudaStreamSynchronize(Handle s) {
    Stream* stream = stream_of(s);
    if (stream->graph) return break_capture(stream, UNSUPPORTED);
    if (Error error = require_no_capture()) return error;
    return wait_until(stream->until_ns);
}
API Error cudaDeviceSynchronize() {
    if (Error error = require_no_capture()) return error;
    return wait_until(device_until_ns());
}

struct Event { int64_t at_ns = 0; };
API Error cudaEventCreate(Event** out) { *out = new Event; return 0; }
API Error cudaEventCreateWithFlags(Event** out, unsigned) { return cudaEventCreate(out); }
API Error cudaEventDestroy(Event* event) { delete event; return 0; }
API Error cudaEventRecord(Event* event, Handle s) { event->at_ns = std::max(now_ns(), stream_of(s)->until_ns); return 0; }
API Error cudaEventRecordWithFlags(Event* event, Handle s, unsigned) { return cudaEventRecord(event, s); }
API Error cudaEventQuery(Event* event) {
    if (Error error = require_no_capture()) return error;
    return now_ns() >= event->at_ns ? 0 : NOT_READY;
}
API Error cudaEventSynchronize(Event* event) {
    if (Error error = require_no_capture()) return error;
    return wait_until(event->at_ns);
}
API Error cudaEventElapsedTime(float* ms, Event* from, Event* to) { *ms = (to->at_ns - from->at_ns) / 1e6f; return 0; }
API Error cudaStreamWaitEvent(Handle s, Event* event, unsigned) {
    std::lock_guard<std::mutex> held(lock);
    stream_of(s)->until_ns = std::max(stream_of(s)->until_ns, event->at_ns);
    return 0;
}

API Error cudaStreamBeginCaptureToGraph(Handle s, Graph* graph, void*, void*, size_t, int mode) {
    static unsigned long long next_id = 1;
    std::lock_guard<std::mutex> held(lock);
    Stream* stream = stream_of(s);
    if (stream == &default_stream || stream->graph) return fail(UNSUPPORTED);
    stream->graph = graph;
    stream->is_broken = false;
    stream->mode = mode;
    stream->id = next_id++;
    stream->owner = std::this_thread::get_id();
    add(captures);
    trace('c');
    return 0;
}
API Error cudaStreamBeginCapture(Handle s, int mode) { return cudaStreamBeginCaptureToGraph(s, new Graph, nullptr, nullptr, 0, mode); }
API Error cudaStreamEndCapture(Handle s, Graph** out) {
    std::lock_guard<std::mutex> held(lock);
    Stream* stream = stream_of(s);
    *out = stream->is_broken ? nullptr : stream->graph;
    stream->graph = nullptr;
    return stream->is_broken ? fail(INVALIDATED) : 0;
}
API Error cudaStreamIsCapturing(Handle s, int* status) {
    Stream* stream = stream_of(s);
    *status = !stream->graph ? cudaStreamCaptureStatusNone
            : stream->is_broken ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
    return 0;
}
API Error cudaStreamGetCaptureInfo(Handle s, int* status, unsigned long long* id, Graph** graph, Handle** deps, Handle** edges, size_t* n) {
    cudaStreamIsCapturing(s, status);
    if (id) *id = stream_of(s)->id;
    if (graph) *graph = stream_of(s)->graph;
    if (deps) *deps = nullptr;
    if (edges) *edges = nullptr;
    if (n) *n = 0;
    return 0;
}
API Error cudaThreadExchangeStreamCaptureMode(int* mode) { std::swap(*mode, thread_mode); return 0; }
API Error cudaGraphCreate(Graph** out, unsigned) { *out = new Graph; return 0; }
API Error cudaGraphDestroy(Graph* graph) { delete graph; return 0; }
API Error cudaGraphGetNodes(Graph* graph, Handle*, size_t* n) { *n = graph->nodes; return 0; }
API Error cudaGraphInstantiateWithFlags(Graph** out, Graph* graph, unsigned long long) {
    sleep_until(now_ns() + CAPTURE_NS);
    *out = new Graph(*graph);
    return 0;
}
API Error cudaGraphExecDestroy(Graph* graph) { delete graph; return 0; }
API Error cudaGraphLaunch(Graph* graph, Handle s) { return enqueue(s, graph_launches, 'g', graph->nodes); }

// --------------------------------------------------------------------------------------------------------- memory
using Blocks = std::map<uintptr_t, size_t>;
static std::mutex memory_lock;
static Blocks device_blocks, pinned_blocks;

static bool lies_in(const Blocks& blocks, const void* at) {
    std::lock_guard<std::mutex> held(memory_lock);
    auto next = blocks.upper_bound(uintptr_t(at));
    return next != blocks.begin() && uintptr_t(at) < (--next)->first + next->second;
}
static void hold(int64_t bytes) {
    auto& peak = shared().counts[peak_bytes].value;
    peak = std::max<int64_t>(peak, add(held_bytes, bytes));
}
API Error cudaMalloc(Handle* out, size_t bytes) {
    if (Error error = require_no_capture()) return error;
    std::lock_guard<std::mutex> held(memory_lock);
    if (shared().counts[held_bytes].value + bytes > TOTAL_BYTES) return fail(NO_MEMORY);
    // addresses alone: a page that is never touched takes no memory
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return fail(NO_MEMORY);
    add(mallocs);
    hold(int64_t(bytes));
    device_blocks[uintptr_t(at)] = bytes;
    *out = at;
    return 0;
}
API Error cudaFree(Handle at) {
    if (!at) return 0;
    if (Error error = require_no_capture()) return error;
    sleep_until(device_until_ns());
    std::lock_guard<std::mutex> held(memory_lock);
    auto block = device_blocks.find(uintptr_t(at));
    if (block == device_blocks.end()) return 0;
    hold(-int64_t(block->second));
    munmap(at, block->second);
    device_blocks.erase(block);
    return 0;
}
API Error cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
    *total_bytes = TOTAL_BYTES;
    *free_bytes = TOTAL_BYTES - shared().counts[held_bytes].value;
    return 0;
}
API Error cudaHostRegister(Handle at, size_t bytes, unsigned) {
    std::lock_guard<std::mutex> held(memory_lock);
    pinned_blocks[uintptr_t(at)] = bytes;
    return 0;
}
API Error cudaHostUnregister(Handle at) {
    std::lock_guard<std::mutex> held(memory_lock);
    pinned_blocks.erase(uintptr_t(at));
    return 0;
}
API Error cudaHostAlloc(Handle* out, size_t bytes, unsigned flags) {
    if (Error error = require_no_capture()) return error;
    *out = malloc(bytes);
    return cudaHostRegister(*out, bytes, flags);
}
API Error cudaFreeHost(Handle at) { cudaHostUnregister(at); free(at); return 0; }
API Error cudaPointerGetAttributes(cudaPointerAttributes* out, const void* at) {
    *out = {};
    out->type = lies_in(device_blocks, at) ? cudaMemoryTypeDevice
              : lies_in(pinned_blocks, at) ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
    out->devicePointer = out->hostPointer = const_cast<void*>(at);
    return 0;
}
API Error cudaMemcpyAsync(Handle to, const void* from, size_t bytes, int, Handle s) {
    bool onto = lies_in(device_blocks, to), off = lies_in(device_blocks, from);
    bool is_pageable = !(onto && off) && !lies_in(pinned_blocks, onto ? from : to);
    Stream* stream = stream_of(s);
    if (is_pageable && stream->graph) return break_capture(stream, UNSUPPORTED);
    if (Error error = is_pageable ? enqueue(s, pageable_copies, 'p') : enqueue(s, copies, 'm')) return error;
    if (stream->graph) return 0;
    if (off && !onto) memset(to, 0, bytes);  // results are zeros
    if (is_pageable) sleep_until(stream->until_ns);
    return 0;
}
API Error cudaMemcpy(Handle to, const void* from, size_t bytes, int kind) {
    if (Error error = require_no_capture()) return error;
    if (Error error = cudaMemcpyAsync(to, from, bytes, kind, nullptr)) return error;
    return wait_until(default_stream.until_ns);
}
API Error cudaMemcpyPeerAsync(Handle to, int, const void* from, int, size_t bytes, Handle s) { return cudaMemcpyAsync(to, from, bytes, 0, s); }
API Error cudaMemsetAsync(Handle, int, size_t, Handle s) { return launch(s); }
API Error cudaMemset(Handle, int, size_t) { return launch(nullptr); }

// ------------------------------------------------------------------------------------------------- what it is: an H200
API Error cudaGetDeviceCount(int* out) { *out = 1; return 0; }
API Error cudaGetDevice(int* out) { *out = 0; return 0; }
API Error cudaDriverGetVersion(int* out) { *out = 13000; return 0; }
API Error cudaRuntimeGetVersion(int* out) { *out = 13000; return 0; }
API Error cudaGetDeviceProperties(cudaDeviceProp* out, int) {
    *out = {};
    strcpy(out->name, "Null GPU (nothing is computed)");
    out->totalGlobalMem = TOTAL_BYTES;
    out->major = 9;
    out->multiProcessorCount = 132;
    out->warpSize = 32;
    out->maxThreadsPerBlock = out->maxThreadsDim[0] = out->maxThreadsDim[1] = 1024;
    out->maxThreadsDim[2] = 64;
    out->maxGridSize[0] = 2147483647;
    out->maxGridSize[1] = out->maxGridSize[2] = 65535;
    out->maxThreadsPerMultiProcessor = 2048;
    out->maxBlocksPerMultiProcessor = 32;
    out->sharedMemPerBlock = 49152;
    out->sharedMemPerBlockOptin = 232448;
    out->sharedMemPerMultiprocessor = 233472;
    out->regsPerBlock = out->regsPerMultiprocessor = 65536;
    out->l2CacheSize = 50 << 20;
    out->unifiedAddressing = 1;
    return 0;
}
API Error cudaDeviceGetAttribute(int* out, int attribute, int) {
    static const std::map<int, int> known{
        {cudaDevAttrMaxThreadsPerBlock, 1024}, {cudaDevAttrMaxSharedMemoryPerBlock, 49152}, {cudaDevAttrWarpSize, 32},
        {cudaDevAttrMultiProcessorCount, 132}, {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
        {cudaDevAttrComputeCapabilityMajor, 9}, {cudaDevAttrMaxSharedMemoryPerMultiprocessor, 233472},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, 232448}};
    auto found = known.find(attribute);
    *out = found == known.end() ? 0 : found->second;
    return 0;
}
API Error cudaDeviceGetStreamPriorityRange(int* least, int* greatest) { *least = 0; *greatest = -5; return 0; }
API Error cudaDeviceGetPCIBusId(char* out, int room, int) { snprintf(out, size_t(room), "0000:00:00.0"); return 0; }
API Error cudaDeviceCanAccessPeer(int* out, int, int) { *out = 0; return 0; }
API Error cudaGetLastError() { Error error = last; last = 0; return error; }
API Error cudaPeekAtLastError() { return last; }
API const char* cudaGetErrorName(Error) { return "nullcuda"; }
API const char* cudaGetErrorString(Error error) {
    switch (error) {
        case NO_MEMORY: return "out of memory";
        case UNSUPPORTED: return "operation not permitted when stream is capturing";
        case INVALIDATED: return "operation failed due to a previous error during capture";
        case IMPLICIT: return "operation would make the legacy stream depend on a capturing blocking stream";
        default: return "unknown";
    }
}

// ------------------------------------------------------------------------------------------------------- launches
struct Call { dim3 grid, block; size_t shared_bytes; Handle stream; };
static thread_local std::vector<Call> calls;
API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t bytes, Handle s) {
    calls.push_back({grid, block, bytes, s});
    return 0;
}
API Error __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* bytes, Handle* s) {
    Call call = calls.back();
    calls.pop_back();
    *grid = call.grid, *block = call.block, *bytes = call.shared_bytes, *s = call.stream;
    return 0;
}
API Error __cudaLaunchKernel(Handle, dim3, dim3, Handle*, size_t, Handle s) { return launch(s); }
API Error cudaLaunchKernel(const void*, dim3, dim3, Handle*, size_t, Handle s) { return launch(s); }
API Error cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void*, Handle*) { return launch(config->stream); }
API Error __cudaGetKernel(Handle* out, const void* function) { *out = const_cast<void*>(function); return 0; }
API Error cudaFuncGetAttributes(cudaFuncAttributes* out, const void*) {
    *out = {};
    out->maxThreadsPerBlock = 1024;
    out->numRegs = 32;
    out->binaryVersion = out->ptxVersion = 90;
    return 0;
}
API Error cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* out, const void*, int, size_t, unsigned) { *out = 2; return 0; }
API Error cudaGetSymbolAddress(Handle* out, const void*) { static char room[1 << 16]; *out = room; return 0; }
static Error succeed(...) { return 0; }
API Error cudaGetDriverEntryPointByVersion(const char*, Handle* out, unsigned, unsigned long long, int* status) {
    *out = reinterpret_cast<Handle>(succeed);
    if (status) *status = 0;
    return 0;
}

// ---------------------------------------------------------- cuBLAS and cuDNN: a handle knows its stream, a plan is a launch
struct Library { Handle stream; };
API Error cublasSetStream_v2(Library* library, Handle s) { library->stream = s; return 0; }
API Error cublasSgemm_v2(Library* library) { return launch(library->stream); }
API Error cublasGemmEx(Library* library) { return launch(library->stream); }
API Error cublasSgemmStridedBatched(Library* library) { return launch(library->stream); }
API Error cublasGemmStridedBatchedEx(Library* library) { return launch(library->stream); }
API Error cublasSgemv_v2(Library* library) { return launch(library->stream); }
API Error cublasGetMathMode(Handle, int* out) { *out = 0; return 0; }
API Error cublasGetPointerMode_v2(Handle, int* out) { *out = 0; return 0; }
API Error cublasLtMatmulAlgoGetHeuristic(Handle, Handle, Handle, Handle, Handle, Handle, Handle, int, void* out, int* n) {
    memset(out, 0, 96);  // cublasLtMatmulHeuristicResult_t
    *n = 1;
    return 0;
}
API Error cublasLtMatmul(Handle, Handle, const void*, const void*, Handle, const void*, Handle, const void*, const void*,
                         Handle, void*, Handle, const void*, void*, size_t, Handle s) { return launch(s); }

API size_t cudnnGetVersion() { return CUDNN_VERSION; }
API size_t cudnnGetCudartVersion() { return 13000; }
API Error cudnnGetProperty(int which, int* out) {
    *out = which == 0 ? CUDNN_MAJOR : which == 1 ? CUDNN_MINOR : CUDNN_PATCHLEVEL;
    return 0;
}
API const char* cudnnGetErrorString(Error) { return "nullcuda"; }
API void cudnnGetLastErrorString(char* out, size_t room) { if (room) *out = 0; }
API Error cudnnSetStream(Library* library, Handle s) { library->stream = s; return 0; }
API Error cudnnGetStream(Library* library, Handle* out) { *out = library->stream; return 0; }
API Error cudnnBackendCreateDescriptor(int, Handle* out) { *out = calloc(1, 64); return 0; }
API Error cudnnBackendGetAttribute(Handle, int, int type, int64_t asked, int64_t* count, void* out) {
    constexpr int INT64 = 3, DESCRIPTOR = 15;  // CUDNN_TYPE_...
    bool is_number = type == INT64 && out && asked == 1;
    if (is_number) *static_cast<int64_t*>(out) = 0;  // no workspace, for one
    if (count) *count = is_number || type == DESCRIPTOR;
    return 0;
}
API Error cudnnBackendExecute(Library* library, Handle, Handle) { return launch(library->stream); }
API Error cudnnConvolutionForward(Library* library) { return launch(library->stream); }

// ------------------------------------------------------------------------------------------------- driver and NVML
API Error cuDevicePrimaryCtxGetState(int, unsigned* flags, int* is_active) { *flags = 0; *is_active = 1; return 0; }
API Error cuCtxGetCurrent(Handle* out) { static int context; *out = &context; return 0; }
API Error cuDriverGetVersion(int* out) { *out = 13000; return 0; }
API Error cuGetErrorString(Error, const char** out) { *out = "nullcuda"; return 0; }

struct NvmlMemory { unsigned long long total, free, used; };
API Error nvmlInit_v2() { return 0; }
API Error nvmlInitWithFlags(unsigned) { return 0; }
API Error nvmlShutdown() { return 0; }
API Error nvmlSystemGetDriverVersion(char* out, unsigned room) { snprintf(out, room, "580.00"); return 0; }
API Error nvmlSystemGetCudaDriverVersion_v2(int* out) { *out = 13000; return 0; }
API Error nvmlDeviceGetCount_v2(unsigned* out) { *out = 1; return 0; }
API Error nvmlDeviceGetHandleByIndex_v2(unsigned, Handle* out) { static int board; *out = &board; return 0; }
API Error nvmlDeviceGetName(Handle, char* out, unsigned room) { snprintf(out, room, "Null GPU (nothing is computed)"); return 0; }
API Error nvmlDeviceGetArchitecture(Handle, unsigned* out) { *out = 9; return 0; }  // Hopper
API Error nvmlDeviceGetComputeMode(Handle, unsigned* out) { *out = 0; return 0; }
API Error nvmlDeviceGetMemoryInfo(Handle, NvmlMemory* out) {  // of this process alone
    auto used = static_cast<unsigned long long>(shared().counts[held_bytes].value);
    *out = {TOTAL_BYTES, TOTAL_BYTES - used, used};
    return 0;
}
API Error nvmlDeviceGetComputeRunningProcesses_v3(Handle, unsigned* n, void*) { *n = 0; return 0; }
API Error nvmlDeviceGetPowerUsage(Handle, unsigned* out) { *out = 120000; return 0; }
API Error nvmlDeviceGetTotalEnergyConsumption(Handle, unsigned long long* out) {
    *out = static_cast<unsigned long long>(now_ns() / 1000000) * 120;
    return 0;
}
struct NvmlUtilization { unsigned gpu, memory; };
API Error nvmlDeviceGetUtilizationRates(Handle, NvmlUtilization* out) { *out = {0, 0}; return 0; }
API Error nvmlDeviceGetEnforcedPowerLimit(Handle, unsigned* out) { *out = 700000; return 0; }
API Error nvmlDeviceGetClockInfo(Handle, unsigned, unsigned* out) { *out = 1980; return 0; }
