// Entry points for one codec and dtype, ZP_C and ZP_D, which whoever compiles sets.
// A shim that runs them on the CPU defines ZP_KERNEL and ZP_SHARED itself. `blocks`: how many must fit on an SM at once,
// which bounds the registers of a thread.
#ifndef ZP_KERNEL
#define ZP_KERNEL(threads, blocks, name) extern "C" __global__ void __launch_bounds__(threads, blocks) name
#define ZP_SHARED(type, name) __shared__ type name
#endif

ZP_KERNEL(128, 1, zp_upload)(const zp::Args a, const zp::Upload u) { zp::upload(a, u); }

ZP_KERNEL(512, 1, zp_measure)(const zp::Args a) {
    ZP_SHARED(zp::MeasureShared, shared);
    if constexpr (ZP_C != zp::RAW) zp::measure<ZP_C, ZP_D>(a, shared);
}
ZP_KERNEL(128, ZP_D == zp::FP32 ? 4 : 6, zp_encode)(const zp::Args a) {
    if constexpr (ZP_C == zp::RAW) {
        zp::encode_raw<ZP_D>(a);
    } else {
        using Shared = zp::EncodeShared<ZP_C, ZP_D>;
        ZP_SHARED(Shared, shared);
        zp::encode<ZP_C, ZP_D>(a, shared);
    }
}
ZP_KERNEL(1024, 1, zp_layout)(const zp::Args a) {
    ZP_SHARED(zp::LayoutShared, shared);
    zp::layout(a, shared);
}
ZP_KERNEL(256, 4, zp_place)(const zp::Args a) { zp::place<ZP_C, ZP_D>(a); }
ZP_KERNEL(256, 4, zp_checksum_write)(const zp::Args a) { zp::checksum(a, true); }

ZP_KERNEL(32, 1, zp_open)(const zp::Args a) { zp::open<ZP_C, ZP_D>(a); }
ZP_KERNEL(256, 4, zp_checksum_read)(const zp::Args a) { zp::checksum(a, false); }
ZP_KERNEL(128, ZP_D == zp::FP32 ? 4 : 6, zp_decode)(const zp::Args a) {
    using Shared = zp::DecodeShared<ZP_C>;
    ZP_SHARED(Shared, shared);
    zp::decode<ZP_C, ZP_D>(a, shared);
}
ZP_KERNEL(128, 3, zp_decode_reduce)(const zp::Args a) {
    using Shared = zp::DecodeShared<ZP_C>;
    ZP_SHARED(Shared, shared);
    if constexpr (ZP_D != zp::U8) zp::decode_reduce<ZP_C, ZP_D>(a, shared);
}
