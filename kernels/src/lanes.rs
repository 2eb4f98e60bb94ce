//! One body, compiled once for each width of vector unit, and chosen when the program runs.
//!
//! Built for any x86-64, a loop may use vectors of 128 bits only. `widest!` compiles the same body twice more, for
//! AVX2 and AVX-512, and picks by what the processor says of itself. The compiler may not fuse or reorder floating-point
//! operations, so all three give the same bits.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Partial results that a loop keeps side by side: as many as the widest vector holds, whatever the width in use.
pub(crate) const LANES: usize = 16;

/// A width of vector unit that the kernels are compiled for, narrowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Width {
    /// What every processor of the target has: on x86-64 SSE2, 128 bits.
    Portable,
    /// 256 bits, with the bit instructions that came along (BMI, LZCNT, POPCNT).
    Avx2,
    /// 512 bits: F, BW, CD, DQ and VL, which came together.
    Avx512,
}

/// The width in use, as a [`Width`]; one that the processor has, or [`UNKNOWN`].
static IN_USE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Nobody has asked the processor yet.
const UNKNOWN: u8 = u8::MAX;

/// From now on the whole process uses no wider vectors than these. `limit(Width::Avx512)` lifts the limit.
///
/// For tests and reports, which run every path of one machine: no result ever depends on it, only the time does.
pub fn limit(width: Width) {
    let widest = Width::available().filter(|available| *available <= width).last();
    IN_USE.store(widest.unwrap_or(Width::Portable) as u8, Relaxed);
}

/// What the kernels use: the widest that the processor has and [`limit`] allows.
#[inline]
pub fn width() -> Width {
    match IN_USE.load(Relaxed) {
        UNKNOWN => ask(),
        in_use => Width::ALL[usize::from(in_use)],
    }
}

#[cold]
fn ask() -> Width {
    let widest = Width::available().last().unwrap_or(Width::Portable);
    // A limit that was set in the meantime stays.
    match IN_USE.compare_exchange(UNKNOWN, widest as u8, Relaxed, Relaxed) {
        Ok(_) => widest,
        Err(in_use) => Width::ALL[usize::from(in_use)],
    }
}

impl Width {
    pub const ALL: [Width; 3] = [Width::Portable, Width::Avx2, Width::Avx512];

    /// The widths that this processor has, narrowest first.
    pub fn available() -> impl Iterator<Item = Width> {
        Width::ALL.into_iter().filter(|width| width.is_available())
    }

    /// Whether this processor has all that code compiled for this width may use.
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

/// `widest! { pub fn name(args) -> result = body; }`: `body` is an `#[inline(always)]` function with the same arguments.
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
                    // SAFETY: the processor has said that it has what this width stands for.
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
pub(crate) use widest;

/// `Σ a·b`, summed in lanes: for the bodies of `widest!`.
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    let (mut a, mut b) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    for (a, b) in a.by_ref().zip(b.by_ref()) {
        for ((sum, &a), &b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    for ((sum, &a), &b) in sums.iter_mut().zip(a.remainder()).zip(b.remainder()) {
        *sum += a * b;
    }
    sums.iter().sum()
}

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
