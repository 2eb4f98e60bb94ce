//! SwiGLU and its gradient as plain loops in `f64`.

/// Returns `h` `[N, F]` for `gates_and_ups` `[N, 2F]`; `width` is `F`.
pub fn forward(gates_and_ups: &[f32], width: usize) -> Vec<f64> {
    let rows = gates_and_ups.chunks_exact(2 * width);
    let exact = |(&g, &u): (&f32, &f32)| f64::from(g) / (1.0 + (-f64::from(g)).exp()) * f64::from(u);
    rows.flat_map(|row| row[..width].iter().zip(&row[width..]).map(exact)).collect()
}

/// Returns the gradient of `Σ h·grad_h` with respect to the input.
pub fn backward(gates_and_ups: &[f32], width: usize, grad_h: &[f32]) -> Vec<f64> {
    let mut gradient = Vec::with_capacity(gates_and_ups.len());
    for (row, grad_h) in gates_and_ups.chunks_exact(2 * width).zip(grad_h.chunks_exact(width)) {
        let sigmoid = |g: f64| 1.0 / (1.0 + (-g).exp());
        gradient.extend((0..width).map(|i| {
            let (g, u) = (f64::from(row[i]), f64::from(row[i + width]));
            f64::from(grad_h[i]) * u * sigmoid(g) * (1.0 + g * (1.0 - sigmoid(g)))
        }));
        gradient.extend((0..width).map(|i| {
            let g = f64::from(row[i]);
            f64::from(grad_h[i]) * g * sigmoid(g)
        }));
    }
    gradient
}
