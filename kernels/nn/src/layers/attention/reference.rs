//! Attention and its gradients as plain loops in `f64`.

use super::Shape;

/// Returns `out` `[N, H·C]` for `rows` `[N, W]`.
pub fn forward(shape: &Shape, rows: &[f32]) -> Vec<f64> {
    let Shape { seq_len, heads, kv_heads, head_width } = *shape;
    let width = shape.row_width();
    let mut out = Vec::new();
    for sequence in rows.chunks_exact(seq_len * width) {
        let at = |row: usize, column: usize| f64::from(sequence[row * width + column]);
        for row in 0..seq_len {
            for head in 0..heads {
                let kv_head = head / shape.group();
                let (key, value) =
                    ((heads + kv_head) * head_width, (heads + kv_heads + kv_head) * head_width);
                let score = |other: usize| -> f64 {
                    (0..head_width).map(|i| at(row, head * head_width + i) * at(other, key + i)).sum()
                };
                let probs = softmax((0..=row).map(score).collect());
                out.extend((0..head_width).map(|i| {
                    probs.iter().enumerate().map(|(other, prob)| prob * at(other, value + i)).sum::<f64>()
                }));
            }
        }
    }
    out
}

/// Returns the gradient of `Σ out·grad_out` with respect to `rows`.
pub fn backward(shape: &Shape, rows: &[f32], grad_out: &[f32]) -> Vec<f64> {
    let Shape { seq_len, heads, kv_heads, head_width } = *shape;
    let (width, out_width) = (shape.row_width(), heads * head_width);
    let mut grad_rows = vec![0.0; rows.len()];
    let sequences = rows.chunks_exact(seq_len * width).zip(grad_out.chunks_exact(seq_len * out_width));
    for ((sequence, grad_out), grad) in sequences.zip(grad_rows.chunks_exact_mut(seq_len * width)) {
        for (row, head) in (0..seq_len).flat_map(|row| (0..heads).map(move |head| (row, head))) {
            let kv_head = head / shape.group();
            let query = row * width + head * head_width;
            let key = |other: usize| other * width + (heads + kv_head) * head_width;
            let value = |other: usize| other * width + (heads + kv_heads + kv_head) * head_width;
            let at = |place: usize| f64::from(sequence[place]);
            let grad_out = |i: usize| f64::from(grad_out[row * out_width + head * head_width + i]);

            let score = |other| (0..head_width).map(|i| at(query + i) * at(key(other) + i)).sum::<f64>();
            let probs = softmax((0..=row).map(score).collect());
            let grad_prob = |other| (0..head_width).map(|i| grad_out(i) * at(value(other) + i)).sum::<f64>();
            let grad_probs: Vec<f64> = (0..=row).map(grad_prob).collect();
            let mean: f64 = probs.iter().zip(&grad_probs).map(|(prob, grad_prob)| prob * grad_prob).sum();
            for (other, (prob, grad_prob)) in probs.iter().zip(grad_probs).enumerate() {
                let grad_score = prob * (grad_prob - mean);
                for i in 0..head_width {
                    grad[query + i] += grad_score * at(key(other) + i);
                    grad[key(other) + i] += grad_score * at(query + i);
                    grad[value(other) + i] += prob * grad_out(i);
                }
            }
        }
    }
    grad_rows
}

fn softmax(scores: Vec<f64>) -> Vec<f64> {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|score| (score - max).exp()).sum();
    scores.into_iter().map(|score| (score - max).exp() / sum).collect()
}
