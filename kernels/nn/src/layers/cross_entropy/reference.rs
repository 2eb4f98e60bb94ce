//! Loss and gradient as plain loops in `f64`.

/// Returns the loss of each row of `logits` `[N, V]`, in nats.
pub fn losses(logits: &[f32], vocab: usize, targets: &[u32]) -> Vec<f64> {
    let rows = logits.chunks_exact(vocab).zip(targets);
    rows.map(|(row, &target)| {
        let max = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let sum: f64 = row.iter().map(|&x| (f64::from(x) - max).exp()).sum();
        sum.ln() + max - f64::from(row[target as usize])
    })
    .collect()
}

/// Returns the gradient of `scale · Σ losses` with respect to the logits.
pub fn gradient(logits: &[f32], vocab: usize, targets: &[u32], scale: f32) -> Vec<f64> {
    let mut gradient = Vec::with_capacity(logits.len());
    for (row, &target) in logits.chunks_exact(vocab).zip(targets) {
        let max = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let sum: f64 = row.iter().map(|&x| (f64::from(x) - max).exp()).sum();
        gradient.extend(row.iter().enumerate().map(|(token, &x)| {
            let hit = if token == target as usize { 1.0 } else { 0.0 };
            ((f64::from(x) - max).exp() / sum - hit) * f64::from(scale)
        }));
    }
    gradient
}
