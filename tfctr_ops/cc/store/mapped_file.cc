#include "tfctr_ops/cc/store/mapped_file.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <atomic>

namespace tfctr {
namespace {

// A quarter of what Linux allows a process by default.
constexpr int64_t kMaxMaps = 16 << 10;
std::atomic<int64_t> num_maps{0};

// Where to go on if this thread meets a bad page; null outside RunGuarded. In
// the thread's static block: a signal handler must not allocate.
__attribute__((tls_model(
    "initial-exec"))) thread_local sigjmp_buf* volatile guard = nullptr;
struct sigaction handler_before;

void OnBusError(int signal, siginfo_t* info, void* context) {
  if (guard != nullptr) siglongjmp(*guard, 1);
  // Somebody else's error, and so somebody else's handler.
  if ((handler_before.sa_flags & SA_SIGINFO) != 0) {
    handler_before.sa_sigaction(signal, info, context);
  } else if (handler_before.sa_handler == SIG_IGN && info->si_code <= 0) {
    return;  // Somebody sent it.
  } else if (handler_before.sa_handler == SIG_DFL ||
             handler_before.sa_handler == SIG_IGN) {
    // A bad page is met once more, and ends the process.
    sigaction(signal, &handler_before, nullptr);
    if (info->si_code <= 0) raise(signal);
  } else {
    handler_before.sa_handler(signal);
  }
}

// Another library may have put its handler in place of ours.
bool HandlerIsOurs() {
  struct sigaction now = {};
  return sigaction(SIGBUS, nullptr, &now) == 0 &&
         (now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == OnBusError;
}

bool InstallHandler() {
  struct sigaction ours = {};
  ours.sa_sigaction = OnBusError;
  // Not blocked in its handler, which is left by a jump.
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&ours.sa_mask);
  return sigaction(SIGBUS, &ours, &handler_before) == 0;
}

}  // namespace

std::unique_ptr<MappedFile> MappedFile::Map(int descriptor, int64_t size) {
  static const bool is_guarded = InstallHandler();
  if (!is_guarded) return nullptr;
  if (num_maps.fetch_add(1) >= kMaxMaps) {
    --num_maps;
    return nullptr;
  }
  void* const data = mmap(nullptr, static_cast<size_t>(size), PROT_READ,
                          MAP_SHARED, descriptor, 0);
  if (data == MAP_FAILED) {
    --num_maps;
    return nullptr;
  }
  // Rows are read one by one: the pages around are of no use.
  madvise(data, static_cast<size_t>(size), MADV_RANDOM);
  return std::unique_ptr<MappedFile>(
      new MappedFile(static_cast<const std::byte*>(data), size));
}

MappedFile::~MappedFile() {
  munmap(const_cast<std::byte*>(data_), static_cast<size_t>(size_));
  --num_maps;
}

bool RunGuarded(void (*use)(void*), void* argument) {
  if (!HandlerIsOurs()) return false;
  sigjmp_buf here;
  if (sigsetjmp(here, /*savemask=*/0) != 0) {
    guard = nullptr;
    // ThreadSanitizer calls handlers with every signal blocked.
    sigset_t bus;
    sigemptyset(&bus);
    sigaddset(&bus, SIGBUS);
    pthread_sigmask(SIG_UNBLOCK, &bus, nullptr);
    return false;
  }
  guard = &here;
  use(argument);
  guard = nullptr;
  return true;
}

int64_t MajorFaults() {
  rusage usage = {};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_majflt;
}

}  // namespace tfctr
