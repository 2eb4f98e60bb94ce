//! Formats numbers, and texts from other parties, for people.

use protocol::consensus::ONE;

/// Prepares a text from other parties, or with object names, for a line on a terminal: removes control characters,
/// and keeps only the first digits of a digest.
pub fn readable(text: &str) -> String {
    const DIGITS_MAX: usize = 32;
    const DIGITS_SHOWN: usize = 8;
    let text: String = text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    let (mut shown, mut rest) = (String::new(), text.as_str());
    while let Some(begin) = rest.find(|c: char| c.is_ascii_hexdigit()) {
        let digits = rest[begin..].find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(rest.len() - begin);
        let end = begin + digits;
        if digits <= DIGITS_MAX {
            shown += &rest[..end];
        } else {
            shown += &rest[..begin + DIGITS_SHOWN];
            shown.push('\u{2026}');
        }
        rest = &rest[end..];
    }
    shown + rest
}

/// Formats a share in parts of [`ONE`] as percent with two decimals.
pub fn share(parts: u64) -> String {
    let hundredths = u128::from(parts).saturating_mul(10_000) / u128::from(ONE);
    format!("{}.{:02} %", hundredths / 100, hundredths % 100)
}

/// Formats a part as percent with one decimal.
pub fn percent_of(part: u128, whole: u128) -> String {
    let tenths = part.saturating_mul(1_000).checked_div(whole).unwrap_or(0);
    format!("{}.{} %", tenths / 10, tenths % 10)
}

/// Formats a fraction as percent with three decimals.
pub fn percent(share: f64) -> String {
    format!("{:.3} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_readable_text_has_short_digests_and_no_control_characters() {
        let digest = "27b4a909df84b7e16dfa4e36bd17e1b64b67f2e1dd9e56ee3397c549e2955d79";
        assert_eq!(readable(&format!("specs/{digest}; more")), "specs/27b4a909\u{2026}; more");
        assert_eq!(readable(digest), "27b4a909\u{2026}");
        assert_eq!(readable("a \x1b[2J face\u{e9}\n"), "a \u{fffd}[2J face\u{e9}\u{fffd}");
        assert_eq!(readable(""), "");
    }

    #[test]
    fn a_share_is_shown_in_percent() {
        assert_eq!(share(0), "0.00 %");
        assert_eq!(share(ONE / 3), "33.33 %");
        assert_eq!(share(ONE), "100.00 %");
        assert_eq!(share(u64::MAX), "429496729599.99 %");
    }
}
