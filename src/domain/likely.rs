//! Guess of the known name that was meant by an unknown one.

/// Least likeness, from 0 to 1, at which a name is taken for a slip of another one. Two of three
/// letters are enough.
const LIKELY: f64 = 0.66;

/// Returns the known name that is most like this one, whatever its case and separators, or `None`
/// if no name is like it.
pub fn likely<'k>(name: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let plain = |name: &str| name.replace(['_', '-', ' '], "").to_lowercase();
    let name = plain(name);
    known
        .into_iter()
        .map(|known| (strsim::normalized_damerau_levenshtein(&name, &plain(known)), known))
        .filter(|(likeness, _)| *likeness >= LIKELY)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_like_name_is_meant_whatever_its_case_and_separators() {
        let known = ["api_token", "api_tokens", "listen"];
        for (name, meant) in [
            ("ApiToken", Some("api_token")),
            ("api-tokens", Some("api_tokens")),
            ("lisen", Some("listen")),
            ("password", None),
            ("", None),
        ] {
            assert_eq!(likely(name, known), meant, "{name}");
        }
        assert_eq!(likely("abd", ["abc"]), Some("abc"), "two of three letters are enough");
        assert_eq!(likely("axx", ["abc"]), None);
    }
}
