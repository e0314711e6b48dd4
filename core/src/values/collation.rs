//! Collations: comparison of strings by the rules of a language.
//!
//! Collations are those of ICU, chosen by locale and options; `{"locale": "simple"}` compares bytes. In keys that are compared as
//! bytes, a string is replaced by its sort key, so that sorted streams under a collation are merged like any others.
//!
//! INVARIANT: a condition on strings restricts a scan of stored keys only if both have the same collation. Shard keys, `_id` and
//! most indexes have none: their strings are in byte order.

use crate::budget;
use crate::error::{Error, Kind, Result, bail, ensure, error};
use crate::values::document::ext_json;
use crate::values::document::value::Value;
use icu_collator::options::{AlternateHandling, CaseLevel, CollatorOptions, MaxVariable, Strength};
use icu_collator::preferences::{CollationCaseFirst, CollationNumericOrdering};
use icu_collator::{CollationKeySink, CollatorBorrowed, CollatorPreferences};
use icu_locale_core::Locale;
use icu_normalizer::properties::CanonicalCombiningClassMapBorrowed;
use serde_json::{Map, Value as Json, json};
use std::borrow::Cow;
use std::cmp::Ordering;
use std::convert::Infallible;
use std::fmt;

/// A collation other than `simple`.
pub struct Collator {
    icu: CollatorBorrowed<'static>,
    /// every option with its value, in MongoDB's order
    definition: Json,
}

impl fmt::Debug for Collator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Collator").field(&self.icu.resolved_options()).finish()
    }
}

/// Two collations are equal if all their options are, whether given or defaults.
impl PartialEq for Collator {
    fn eq(&self, other: &Self) -> bool {
        self.definition == other.definition
    }
}

impl Eq for Collator {}

/// The locales that MongoDB documents. Source: MongoDB's manual, "Collation Locales".
const LOCALES: &str = "af am ar as az be bg bn bo bs bs_Cyrl ca chr cs cy da de de_AT dsb dz ee el en en_US en_US_POSIX eo es et \
    fa fa_AF fi fil fo fr fr_CA ga gl gu ha haw he hi hr hsb hu hy id ig is it ja ka kk kl km kn ko kok ky lb \
    lkt ln lo lt lv mk ml mn mr ms mt my nb ne nl nn om or pa pl ps pt ro ru se si sk sl smn sq sr sr_Latn sv \
    sw ta te th to tr ug uk ur vi wae yi yo zh zh_Hant zu";

/// The variants of a locale's collation, by their BCP 47 names.
const VARIANTS: &str =
    "compat dict eor gb2312 phonebk phonetic pinyin reformed search searchjl standard stroke trad unihan zhuyin";

/// ICU's names of variants where they differ from the BCP 47 ones.
const ICU_VARIANTS: &[(&str, &str)] =
    &[("phonebook", "phonebk"), ("traditional", "trad"), ("dictionary", "dict"), ("gb2312han", "gb2312")];

/// MongoDB's version of ICU's collations, the only accepted value of the option `version`.
const VERSION: &str = "57.1";

/// The options that a collation may have.
const OPTIONS: &str =
    "locale strength caseLevel caseFirst numericOrdering alternate maxVariable normalization backwards version";

fn case_first(text: &str) -> Result<Option<CollationCaseFirst>> {
    Ok(Some(match text {
        "off" => CollationCaseFirst::False,
        "upper" => CollationCaseFirst::Upper,
        "lower" => CollationCaseFirst::Lower,
        other => return Err(invalid("caseFirst", other)),
    }))
}

impl Collator {
    /// Parses `{"locale": "en", "strength": 2}`; None for `{"locale": "simple"}` and for `{}`.
    ///
    /// # Errors
    /// `TypeMismatch`, `UnknownOption` and `Location40414` for a wrong, unknown or missing field, `BadValue` for a strength out of range,
    /// an unknown locale, an invalid value of another option, and an option without effect at that strength, `FailedToParse` for options of
    /// `simple`, `IncompatibleCollationVersion`, `NotImplemented` for `backwards` where the locale does not imply it.
    pub fn parse(json: &Json) -> Result<Option<Collator>> {
        let Some(fields) = ext_json::document(json) else {
            return Err(mismatch("collation", json, "object"));
        };
        if fields.is_empty() {
            return Ok(None);
        }
        if let Some(unknown) = fields.keys().find(|name| !OPTIONS.split(' ').any(|option| option == *name)) {
            bail!(Kind::UnknownOption, "BSON field 'collation.{unknown}' is an unknown field.");
        }
        let Some(locale) = string(fields, "locale")? else {
            bail!(40414, "BSON field 'collation.locale' is missing but a required field")
        };
        let (options, strength) = options(fields)?;
        let first = string(fields, "caseFirst")?;
        let case_first = first.map_or(Ok(None), case_first)?;
        let numeric = boolean(fields, "numericOrdering")? == Some(true);
        let numeric_ordering = if numeric { CollationNumericOrdering::True } else { CollationNumericOrdering::False };
        let normalization = boolean(fields, "normalization")?.unwrap_or(false);
        // Unlike for the other options, null is an error, and does not mean that the option is missing.
        if fields.get("backwards").is_some_and(Json::is_null) {
            return Err(mismatch("collation.backwards", &Json::Null, "bool"));
        }
        let backwards = boolean(fields, "backwards")? == Some(true);
        let version = string(fields, "version")?;
        if locale == "simple" {
            let alone = fields.len() == 1;
            ensure!(alone, Kind::FailedToParse, "If locale is \"simple\", no other fields may be specified in: {json}");
            return Ok(None);
        }
        if let Some(version) = version.filter(|version| *version != VERSION) {
            bail!(
                Kind::IncompatibleCollationVersion,
                "Requested collation version {version} but the only available one is {VERSION}"
            );
        }
        let has_case = strength > 2 || options.case_level == Some(CaseLevel::On);
        if first.is_some_and(|first| first != "off") && !has_case {
            bail!(Kind::BadValue, "'caseFirst' is invalid unless 'caseLevel' is on or 'strength' is greater than 2");
        }
        // `fr_CA` implies `backwards`: its definition has the option, and must be accepted when it is parsed again.
        if backwards && locale != "fr_CA" {
            ensure!(strength != 1, Kind::BadValue, "'backwards' is invalid with 'strength' of 1");
            bail!(Kind::NotImplemented, "the collation option backwards is not supported");
        }
        let mut preferences = CollatorPreferences::from(&parse_locale(locale)?);
        preferences.case_first = case_first;
        preferences.numeric_ordering = Some(numeric_ordering);
        let icu = CollatorBorrowed::try_new(preferences, options)
            .map_err(|error| error!(Kind::BadValue, "invalid collation: {error}"))?;
        let definition = json!({
            "locale": locale,
            "caseLevel": options.case_level == Some(CaseLevel::On),
            "caseFirst": first.unwrap_or("off"),
            "strength": strength,
            "numericOrdering": numeric,
            "alternate": string(fields, "alternate")?.unwrap_or("non-ignorable"),
            "maxVariable": string(fields, "maxVariable")?.unwrap_or("punct"),
            "normalization": normalization,
            "backwards": locale == "fr_CA",
        });
        Ok(Some(Collator { icu, definition }))
    }

    /// Every option with its value, as [`Collator::parse`] reads it.
    pub fn definition(&self) -> &Json {
        &self.definition
    }

    /// Compares two strings.
    pub fn compare(&self, a: &str, b: &str) -> Ordering {
        if a.len().max(b.len()) <= SHORT {
            return self.icu.compare(a, b);
        }
        let key = |text| {
            let mut key = Vec::new();
            self.sort_key(text, &mut key);
            key
        };
        key(a).cmp(&key(b))
    }

    /// Appends the string's sort key. Sort keys compare bytewise as their strings do.
    pub fn sort_key(&self, text: &str, out: &mut Vec<u8>) {
        if text.len() <= SHORT {
            let Ok(()) = self.icu.write_sort_key_to(text, out);
            return;
        }
        budget::room_for(text.len());
        let Ok(()) = self.icu.write_sort_key_to(&with_joiners(text), &mut Interruptible(out));
    }
}

/// Strings of at most this number of bytes are given to the library as they are.
const SHORT: usize = 512;
/// The most combining marks in a row that the library is given: the limit of Unicode's Stream-Safe Text Format (UAX #15). The
/// library's time grows with the square of their number.
const MAX_MARKS: usize = 30;
/// The combining grapheme joiner, which has no weight, and separates combining marks.
const JOINER: char = '\u{34f}';

/// The characters of combining class 0 that decompose to combining marks.
const MARKS_OF_CLASS_0: [char; 3] = ['\u{f73}', '\u{f75}', '\u{f81}'];

/// The text with a joiner after each [`MAX_MARKS`] combining marks in a row.
fn with_joiners(text: &str) -> Cow<'_, str> {
    let classes = CanonicalCombiningClassMapBorrowed::new();
    let mut joined = String::new();
    let (mut copied, mut marks) = (0, 0);
    for (at, c) in text.char_indices() {
        budget::step();
        marks = if classes.get_u8(c) == 0 && !MARKS_OF_CLASS_0.contains(&c) { 0 } else { marks + 1 };
        if marks > MAX_MARKS {
            joined.push_str(&text[copied..at]);
            joined.push(JOINER);
            (copied, marks) = (at, 1);
        }
    }
    if copied == 0 {
        return text.into();
    }
    joined.push_str(&text[copied..]);
    joined.into()
}

/// A sink for a sort key that counts steps.
struct Interruptible<'a>(&'a mut Vec<u8>);

impl CollationKeySink for Interruptible<'_> {
    type Error = Infallible;
    type State = ();
    type Output = ();

    fn write(&mut self, (): &mut (), bytes: &[u8]) -> std::result::Result<(), Infallible> {
        budget::step();
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finish(&mut self, (): ()) -> std::result::Result<(), Infallible> {
        Ok(())
    }
}

fn parse_locale(name: &str) -> Result<Locale> {
    let unknown = || error!(Kind::BadValue, "Field 'locale' is invalid in: {{ locale: \"{name}\" }}");
    let is_in = |names: &str, name: &str| names.split(' ').any(|known| known == name);
    let (base, variant) = name.split_once("@collation=").unzip();
    let base = base.unwrap_or(name);
    if !is_in(LOCALES, base) {
        return Err(unknown());
    }
    let mut tag = match base {
        "en_US_POSIX" => "en-US-posix".to_owned(),
        base => base.replace('_', "-"),
    };
    if let Some(variant) = variant {
        let variant = ICU_VARIANTS.iter().find(|(icu, _)| *icu == variant).map_or(variant, |(_, name)| name);
        if !is_in(VARIANTS, variant) {
            return Err(unknown());
        }
        tag += &format!("-u-co-{variant}");
    }
    tag.parse().map_err(|_| unknown())
}

/// The options in the form that the library takes, and the strength as a number.
fn options(fields: &Map<String, Json>) -> Result<(CollatorOptions, i64)> {
    let mut options = CollatorOptions::default();
    let strength = match fields.get("strength") {
        None | Some(Json::Null) => 3,
        Some(json) => match ext_json::from_json(json)? {
            Value::Number(number) => number.to_i64_rounded(),
            _ => return Err(mismatch("collation.strength", json, "number")),
        },
    };
    options.strength = Some(match strength {
        1 => Strength::Primary,
        2 => Strength::Secondary,
        3 => Strength::Tertiary,
        4 => Strength::Quaternary,
        5 => Strength::Identical,
        other => {
            let bound = if other < 1 { ">= 1" } else { "<= 5" };
            bail!(Kind::BadValue, "BSON field 'strength' value must be {bound}, actual value '{other}'")
        }
    });
    options.case_level = Some(if boolean(fields, "caseLevel")? == Some(true) { CaseLevel::On } else { CaseLevel::Off });
    options.alternate_handling = Some(match string(fields, "alternate")? {
        None | Some("non-ignorable") => AlternateHandling::NonIgnorable,
        Some("shifted") => AlternateHandling::Shifted,
        Some(other) => return Err(invalid("alternate", other)),
    });
    options.max_variable = Some(match string(fields, "maxVariable")? {
        None | Some("punct") => MaxVariable::Punctuation,
        Some("space") => MaxVariable::Space,
        Some(other) => return Err(invalid("maxVariable", other)),
    });
    Ok((options, strength))
}

fn string<'a>(fields: &'a Map<String, Json>, name: &str) -> Result<Option<&'a str>> {
    match fields.get(name) {
        None | Some(Json::Null) => Ok(None),
        Some(Json::String(value)) => Ok(Some(value)),
        Some(other) => Err(mismatch(&format!("collation.{name}"), other, "string")),
    }
}

fn boolean(fields: &Map<String, Json>, name: &str) -> Result<Option<bool>> {
    match fields.get(name) {
        None | Some(Json::Null) => Ok(None),
        Some(Json::Bool(value)) => Ok(Some(*value)),
        Some(other) => Err(mismatch(&format!("collation.{name}"), other, "bool")),
    }
}

fn mismatch(name: &str, found: &Json, wanted: &str) -> Error {
    let found = ext_json::from_json(found).map_or("object", |value| value.type_name());
    error!(Kind::TypeMismatch, "BSON field '{name}' is the wrong type '{found}', expected type '{wanted}'")
}

fn invalid(name: &str, value: &str) -> Error {
    error!(Kind::BadValue, "Enumeration value '{value}' for field 'collation.{name}' is not a valid value.")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collator(json: Json) -> Collator {
        Collator::parse(&json).unwrap().unwrap()
    }

    #[test]
    fn every_locale_is_known_to_the_library() {
        for locale in LOCALES.split(' ') {
            assert!(Collator::parse(&json!({"locale": locale})).unwrap().is_some(), "{locale}");
        }
        assert!(Collator::parse(&json!({"locale": "de@collation=phonebook"})).unwrap().is_some());
        assert!(Collator::parse(&json!({"locale": "simple"})).unwrap().is_none());
    }

    /// The library's time for this text grows with the square of its length: a minute for 2 MB.
    fn with_marks(mark: char, count: usize) -> String {
        format!("\u{fb2}{}\u{f71}", mark.to_string().repeat(count))
    }

    #[test]
    fn many_combining_marks_take_linear_time() {
        for mark in MARKS_OF_CLASS_0.into_iter().chain(['\u{f39}']) {
            let joined = with_joiners(&with_marks(mark, 100)).into_owned();
            let longest = joined.split(JOINER).map(|part| part.chars().count()).max();
            assert_eq!(longest, Some(1 + MAX_MARKS), "{joined}");
        }
        // No other character of class 0 decomposes to a sequence that begins with a mark.
        use icu_normalizer::properties::Decomposed as D;
        let decomposing = icu_normalizer::properties::CanonicalDecompositionBorrowed::new();
        let classes = CanonicalCombiningClassMapBorrowed::new();
        let begins_with_mark = |c: &char| match decomposing.decompose(*c) {
            D::Singleton(first) | D::Expansion(first, _) => classes.get_u8(first) != 0,
            D::Default => false,
        };
        let all: Vec<char> = ('\0'..=char::MAX).filter(|c| classes.get_u8(*c) == 0).filter(begins_with_mark).collect();
        assert_eq!(all, MARKS_OF_CLASS_0);
        assert!(matches!(with_joiners("e\u{301}\u{302}"), Cow::Borrowed(_)));
        let collator = collator(json!({"locale": "en"}));
        for (mark, count) in [('\u{f39}', 700_000), ('\u{f73}', 100_000)] {
            let (a, b) = (with_marks(mark, count), with_marks(mark, count + 1));
            assert!(collator.compare(&a, &b).is_ne());
            assert!(collator.compare(&a, &a.clone()).is_eq());
        }
    }

    #[test]
    fn long_strings_are_compared_like_short_ones() {
        for definition in
            [json!({"locale": "en"}), json!({"locale": "fr_CA", "strength": 2}), json!({"locale": "en", "strength": 5})]
        {
            let collator = collator(definition);
            for (a, b) in [("a", "A"), ("e", "\u{e9}"), ("co-op", "coop"), ("\u{e9}a", "e\u{301}b"), ("a", "a")] {
                let [long_a, long_b] = [a, b].map(|text| format!("{text}{}", "x".repeat(SHORT)));
                assert_eq!(collator.compare(&long_a, &long_b), collator.icu.compare(&long_a, &long_b), "{a} {b}");
            }
        }
    }

    #[test]
    fn strength_decides_what_differs() {
        for (strength, accents, case) in [(1, true, true), (2, false, true), (3, false, false)] {
            let collator = collator(json!({"locale": "en", "strength": strength}));
            assert_eq!(collator.compare("e", "é").is_eq(), accents, "{strength}");
            assert_eq!(collator.compare("e", "E").is_eq(), case, "{strength}");
        }
        let with_case = collator(json!({"locale": "en", "strength": 1, "caseLevel": true}));
        assert!(with_case.compare("e", "é").is_eq() && with_case.compare("e", "E").is_ne());
    }

    #[test]
    fn options_order() {
        let plain = collator(json!({"locale": "en"}));
        assert!(plain.compare("10", "2").is_lt() && plain.compare("a", "A").is_lt());
        assert!(collator(json!({"locale": "en", "numericOrdering": true})).compare("10", "2").is_gt());
        assert!(collator(json!({"locale": "en", "caseFirst": "upper"})).compare("a", "A").is_gt());
        let shifted = collator(json!({"locale": "en", "alternate": "shifted", "strength": 3}));
        assert!(shifted.compare("a-b", "ab").is_eq());
        assert!(collator(json!({"locale": "sv"})).compare("z", "ä").is_lt());
        assert!(collator(json!({"locale": "de"})).compare("z", "ä").is_gt());
    }

    #[test]
    fn sort_keys_order_as_the_collation() {
        let collator = collator(json!({"locale": "en", "strength": 2, "numericOrdering": true}));
        let words = ["", "a", "A", "á", "b", "item 2", "item 10", "Item 2", "ß", "ss", "\u{1F600}", " x"];
        for a in words {
            for b in words {
                let key = |text| {
                    let mut key = Vec::new();
                    collator.sort_key(text, &mut key);
                    key
                };
                assert_eq!(key(a).cmp(&key(b)), collator.compare(a, b), "{a} {b}");
            }
        }
    }

    #[test]
    fn two_are_one_if_every_option_is() {
        let brief = collator(json!({"locale": "en", "strength": 2}));
        assert_eq!(brief, collator(brief.definition().clone()));
        assert_eq!(brief, collator(json!({"strength": 2.0, "locale": "en", "caseFirst": "off"})));
        assert_ne!(brief, collator(json!({"locale": "en"})));
        assert_eq!(brief, collator(json!({"locale": "en", "strength": 2, "caseLevel": null, "alternate": null})));
        for json in [
            json!({"locale": "fr_CA", "strength": 1, "version": "57.1"}),
            json!({"locale": "en", "caseFirst": "lower", "strength": 1, "caseLevel": true}),
        ] {
            let given = collator(json);
            assert_eq!(given, collator(given.definition().clone()));
        }
    }

    #[test]
    fn malformed_ones_are_refused() {
        for (json, code) in [
            (json!("en"), 14),
            (json!({"strength": 1}), 40414),
            (json!({"locale": "en_DB"}), 2),
            (json!({"locale": "xx"}), 2),
            (json!({"locale": 1}), 14),
            (json!({"locale": "en", "strength": -1}), 2),
            (json!({"locale": "en", "strength": 6}), 2),
            (json!({"locale": "en", "caseFirst": "bad"}), 2),
            (json!({"locale": "en", "backwards": "0"}), 14),
            (json!({"locale": "en", "backwards": null}), 14),
            (json!({"locale": "en", "hot": 1}), 40415),
            (json!({"locale": "en", "backwards": true}), 238),
            (json!({"locale": "en", "backwards": true, "strength": 1}), 2),
            (json!({"locale": "en", "caseFirst": "upper", "strength": 2}), 2),
            (json!({"locale": "en", "version": "58.2"}), 161),
            (json!({"locale": "simple", "strength": 2}), 9),
        ] {
            assert_eq!(Collator::parse(&json).unwrap_err().kind.code(), code, "{json}");
        }
    }
}
