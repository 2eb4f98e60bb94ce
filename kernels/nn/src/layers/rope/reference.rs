//! Rotation of one row in `f64`.

/// Rotates all heads of `row`: `queries` query heads, then key heads, each `head_width` wide.
pub fn rotate(row: &[f32], queries: usize, head_width: usize, position: usize, base: f64) -> Vec<f64> {
    let half = head_width / 2;
    let mut rotated = Vec::new();
    for (head, x) in row.chunks_exact(head_width).enumerate() {
        let scale = if head < queries { 1.0 / (head_width as f64).sqrt() } else { 1.0 };
        let value = |i: usize| {
            let angle = position as f64 / base.powf((i % half) as f64 / half as f64);
            let (a, b) = (f64::from(x[i % half]), f64::from(x[i % half + half]));
            scale
                * if i < half { a * angle.cos() - b * angle.sin() } else { b * angle.cos() + a * angle.sin() }
        };
        rotated.extend((0..head_width).map(value));
    }
    rotated
}
