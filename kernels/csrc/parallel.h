// Runs f(item, worker) for items 0..count-1. Threads live for one call: nothing to clean up, nothing that a fork could break.
#pragma once
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

namespace zp {
template <class F> void parallel(unsigned long long count, int threads, F f) {
    std::atomic<unsigned long long> next{0};
    auto work = [&](int worker) {
        for (unsigned long long i; (i = next.fetch_add(1)) < count;) f(i, worker);
    };
    std::vector<std::thread> helpers;
    for (int w = 1; w < threads && (unsigned long long)w < count; w++) {
        try {
            helpers.emplace_back(work, w);
        } catch (const std::system_error&) {
            break;  // no thread to be had: those that run do the work
        }
    }
    work(0);
    for (auto& t : helpers) t.join();
}
}  // namespace zp
