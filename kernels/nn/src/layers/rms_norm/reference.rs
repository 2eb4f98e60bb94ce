//! RMSNorm and its gradients as plain loops in `f64`.

/// Returns `y` `[N, D]` for `x` `[N, D]` and `gain` `[D]`.
pub fn forward(x: &[f32], gain: &[f32], epsilon: f32) -> Vec<f64> {
    let rows = x.chunks_exact(gain.len());
    rows.flat_map(|x| {
        let inverse = inverse_root(x, epsilon);
        x.iter().zip(gain).map(move |(&x, &gain)| f64::from(x) * inverse * f64::from(gain))
    })
    .collect()
}

/// Returns the gradients of `Σ y·grad_y` with respect to `x` and `gain`.
pub fn backward(x: &[f32], gain: &[f32], epsilon: f32, grad_y: &[f32]) -> (Vec<f64>, Vec<f64>) {
    let width = gain.len();
    let (mut grad_x, mut grad_gain) = (Vec::new(), vec![0.0; width]);
    for (x, grad_y) in x.chunks_exact(width).zip(grad_y.chunks_exact(width)) {
        let inverse = inverse_root(x, epsilon);
        let value = |i: usize| (f64::from(x[i]), f64::from(gain[i]) * f64::from(grad_y[i]));
        let along: f64 = (0..width).map(|i| value(i).0 * value(i).1).sum();
        for (i, grad_gain) in grad_gain.iter_mut().enumerate() {
            let (x, grad_normed) = value(i);
            grad_x.push(inverse * grad_normed - x * inverse.powi(3) * along / width as f64);
            *grad_gain += x * inverse * f64::from(grad_y[i]);
        }
    }
    (grad_x, grad_gain)
}

fn inverse_root(x: &[f32], epsilon: f32) -> f64 {
    let squares: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    1.0 / (squares / x.len() as f64 + f64::from(epsilon)).sqrt()
}
