//! One body, compiled once for each width of vector unit, and chosen when the program runs.
//!
//! Built for any x86-64, a loop may use vectors of 128 bits only. `widest!` compiles the same body twice more, for
//! AVX2 and AVX-512, and picks by what the processor says of itself. The compiler may not fuse or reorder floating-point
//! operations, so all three give the same bits.

/// Partial results that a loop keeps side by side: as many as the widest vector holds, whatever the width in use.
pub(crate) const LANES: usize = 16;

/// `widest! { pub fn name(args) -> result = body; }`: `body` is an `#[inline(always)]` function with the same arguments.
macro_rules! widest {
    ($(#[$attribute:meta])* $visibility:vis fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? = $body:path;) => {
        $(#[$attribute])*
        $visibility fn $name($($argument: $type),*) $(-> $result)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f")]
                fn with_avx512($($argument: $type),*) $(-> $result)? {
                    $body($($argument),*)
                }
                #[target_feature(enable = "avx2")]
                fn with_avx2($($argument: $type),*) $(-> $result)? {
                    $body($($argument),*)
                }
                if std::arch::is_x86_feature_detected!("avx512f") {
                    // SAFETY: the processor has just said that it has AVX-512F.
                    return unsafe { with_avx512($($argument),*) };
                }
                if std::arch::is_x86_feature_detected!("avx2") {
                    // SAFETY: the processor has just said that it has AVX2.
                    return unsafe { with_avx2($($argument),*) };
                }
            }
            $body($($argument),*)
        }
    };
}
pub(crate) use widest;
