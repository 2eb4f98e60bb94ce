//! Compiles one function body for several vector widths and picks one at run time.
//!
//! A build for any x86-64 may use 128-bit vectors only. [`widest!`](crate::lanes::widest) also compiles the same body
//! for AVX2 and AVX-512, and picks one by `cpuid`. The compiler may neither fuse nor reorder floating-point
//! operations, so all three give the same bits.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Number of partial results in a loop: 16 `f32`, the widest vector, for every width.
pub const LANES: usize = 16;

/// Vector width that the kernels are compiled for, narrowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Width {
    /// The target's baseline: on x86-64 SSE2, 128 bits.
    Portable,
    /// 256 bits, with BMI, LZCNT and POPCNT.
    Avx2,
    /// 512 bits: F, BW, CD, DQ and VL.
    Avx512,
}

/// The width in use as a [`Width`], or [`UNKNOWN`].
static IN_USE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Value of [`IN_USE`] before detection.
const UNKNOWN: u8 = u8::MAX;

/// Limits the vector width of the whole process; `limit(Width::Avx512)` lifts the limit.
///
/// Used by tests and reports to run every path on one machine. Results do not depend on it.
pub fn limit(width: Width) {
    let widest = Width::available().filter(|available| *available <= width).last();
    IN_USE.store(widest.unwrap_or(Width::Portable) as u8, Relaxed);
}

/// Returns the width in use: the widest that the processor supports and [`limit`] allows.
#[inline]
pub fn width() -> Width {
    match IN_USE.load(Relaxed) {
        UNKNOWN => detect(),
        in_use => Width::ALL[usize::from(in_use)],
    }
}

#[cold]
fn detect() -> Width {
    let widest = Width::available().last().unwrap_or(Width::Portable);
    // Keep a limit set by another thread in the meantime.
    match IN_USE.compare_exchange(UNKNOWN, widest as u8, Relaxed, Relaxed) {
        Ok(_) => widest,
        Err(in_use) => Width::ALL[usize::from(in_use)],
    }
}

impl Width {
    pub const ALL: [Width; 3] = [Width::Portable, Width::Avx2, Width::Avx512];

    /// Returns the widths that this processor supports, narrowest first.
    pub fn available() -> impl Iterator<Item = Width> {
        Width::ALL.into_iter().filter(|width| width.is_available())
    }

    /// Returns whether this processor supports every instruction set that code of this width may use.
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            let avx2 = || has!("avx2") && has!("bmi1") && has!("bmi2") && has!("lzcnt") && has!("popcnt");
            let avx512 = || {
                has!("avx512f")
                    && has!("avx512bw")
                    && has!("avx512cd")
                    && has!("avx512dq")
                    && has!("avx512vl")
            };
            match self {
                Width::Portable => true,
                Width::Avx2 => avx2(),
                Width::Avx512 => avx2() && avx512(),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self == Width::Portable
        }
    }
}

/// `widest! { pub fn name(args) -> result = body; }` compiles `body`, an `#[inline(always)]` function with the same
/// arguments, for every [`Width`](crate::lanes::Width) and calls the one in use.
#[macro_export]
#[doc(hidden)]
macro_rules! widest {
    ($(#[$attribute:meta])* $visibility:vis fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? = $body:path;) => {
        $(#[$attribute])*
        $visibility fn $name($($argument: $type),*) $(-> $result)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,bmi1,bmi2,lzcnt,popcnt")]
                fn with_avx512($($argument: $type),*) $(-> $result)? {
                    $body($($argument),*)
                }
                #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
                fn with_avx2($($argument: $type),*) $(-> $result)? {
                    $body($($argument),*)
                }
                match $crate::lanes::width() {
                    // SAFETY: `width` returns only widths that the processor supports.
                    $crate::lanes::Width::Avx512 => return unsafe { with_avx512($($argument),*) },
                    // SAFETY: as above.
                    $crate::lanes::Width::Avx2 => return unsafe { with_avx2($($argument),*) },
                    $crate::lanes::Width::Portable => {}
                }
            }
            $body($($argument),*)
        }
    };
}
#[doc(inline)]
pub use widest;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_wider_vectors_are_used_than_the_limit_allows_and_the_processor_has() {
        let best = Width::available().last();
        for width in Width::ALL {
            limit(width);
            assert!(super::width() <= width && super::width().is_available());
            assert_eq!(super::width() == width, width.is_available());
        }
        limit(Width::Avx512);
        assert_eq!(Some(super::width()), best);
    }
}
