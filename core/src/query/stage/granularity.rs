//! Series of preferred numbers, to which `$bucketAuto` rounds its boundaries.

/// A series of preferred numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Granularity {
    /// these numbers, in hundredths from 100 to below 1000, times powers of ten
    Numbers(&'static [u32]),
    /// each power of ten is divided into this number of parts by a geometric progression, rounded to hundredths
    Parts(u32),
    /// powers of two
    Two,
}

const R5: &[u32] = &[100, 160, 250, 400, 630];
const R10: &[u32] = &[100, 125, 160, 200, 250, 315, 400, 500, 630, 800];
const R20: &[u32] =
    &[100, 112, 125, 140, 160, 180, 200, 224, 250, 280, 315, 355, 400, 450, 500, 560, 630, 710, 800, 900];
const R40: &[u32] = &[
    100, 106, 112, 118, 125, 132, 140, 150, 160, 170, 180, 190, 200, 212, 224, 236, 250, 265, 280, 300, 315, 335, 355,
    375, 400, 425, 450, 475, 500, 530, 560, 600, 630, 670, 710, 750, 800, 850, 900, 950,
];
const R80: &[u32] = &[
    100, 103, 106, 109, 112, 115, 118, 122, 125, 128, 132, 136, 140, 145, 150, 155, 160, 165, 170, 175, 180, 185, 190,
    195, 200, 206, 212, 218, 224, 230, 236, 243, 250, 258, 265, 272, 280, 290, 300, 307, 315, 325, 335, 345, 355, 365,
    375, 387, 400, 412, 425, 437, 450, 462, 475, 487, 500, 515, 530, 545, 560, 580, 600, 615, 630, 650, 670, 690, 710,
    730, 750, 775, 800, 825, 850, 875, 900, 925, 950, 975,
];
const E6: &[u32] = &[100, 150, 220, 330, 470, 680];
const E12: &[u32] = &[100, 120, 150, 180, 220, 270, 330, 390, 470, 560, 680, 820];
const E24: &[u32] = &[
    100, 110, 120, 130, 150, 160, 180, 200, 220, 240, 270, 300, 330, 360, 390, 430, 470, 510, 560, 620, 680, 750, 820,
    910,
];

const SERIES: &[(&str, Granularity)] = &[
    ("R5", Granularity::Numbers(R5)),
    ("R10", Granularity::Numbers(R10)),
    ("R20", Granularity::Numbers(R20)),
    ("R40", Granularity::Numbers(R40)),
    ("R80", Granularity::Numbers(R80)),
    ("1-2-5", Granularity::Numbers(&[100, 200, 500])),
    ("E6", Granularity::Numbers(E6)),
    ("E12", Granularity::Numbers(E12)),
    ("E24", Granularity::Numbers(E24)),
    ("E48", Granularity::Parts(48)),
    ("E96", Granularity::Parts(96)),
    ("E192", Granularity::Parts(192)),
    ("POWERSOF2", Granularity::Two),
];

impl Granularity {
    /// The series of that name.
    pub fn find(name: &str) -> Option<Granularity> {
        SERIES.iter().find(|(known, _)| *known == name).map(|(_, series)| *series)
    }

    /// Returns the least number of the series that is greater than a positive number; 0 for 0.
    pub fn above(self, number: f64) -> f64 {
        if number == 0.0 || !number.is_finite() {
            return number;
        }
        if self == Granularity::Two {
            return number.log2().floor().exp2() * 2.0;
        }
        let power = exponent(number);
        let candidates = (power..=power + 1).flat_map(|power| self.hundredths().map(move |base| scaled(base, power)));
        candidates.into_iter().find(|candidate| *candidate > number).unwrap_or(f64::INFINITY)
    }

    /// Returns the greatest number of the series that is less than a positive number; 0 for 0.
    pub fn below(self, number: f64) -> f64 {
        if number == 0.0 || !number.is_finite() {
            return number;
        }
        if self == Granularity::Two {
            return number.log2().ceil().exp2() / 2.0;
        }
        let power = exponent(number);
        let candidates = (power - 1..=power).flat_map(|power| self.hundredths().map(move |base| scaled(base, power)));
        candidates.into_iter().take_while(|candidate| *candidate < number).last().unwrap_or(0.0)
    }

    fn hundredths(self) -> Box<dyn Iterator<Item = u32>> {
        match self {
            Granularity::Numbers(numbers) => Box::new(numbers.iter().copied()),
            Granularity::Parts(parts) => Box::new((0..parts).map(move |part| match (parts, part) {
                // The only value of the E192 series that the rule does not give.
                (192, 185) => 920,
                _ => (10f64.powf(f64::from(part) / f64::from(parts)) * 100.0).round() as u32,
            })),
            Granularity::Two => Box::new(std::iter::empty()),
        }
    }
}

/// The decimal exponent: the power of ten of a number's first digit.
fn exponent(number: f64) -> i32 {
    number.log10().floor() as i32
}

/// Returns `hundredths / 100 * 10^power` with a single rounding, if possible.
fn scaled(hundredths: u32, power: i32) -> f64 {
    match power - 2 {
        power if power >= 0 => f64::from(hundredths) * 10f64.powi(power),
        power => f64::from(hundredths) / 10f64.powi(-power),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_in_a_series() {
        for (name, number, below, above) in [
            ("R5", 10.0, 6.3, 16.0),
            ("R5", 11.0, 10.0, 16.0),
            ("1-2-5", 0.3, 0.2, 0.5),
            ("1-2-5", 99.0, 50.0, 100.0),
            ("1-2-5", 1000.0, 500.0, 2000.0),
            ("E192", 9.19, 9.09, 9.2),
            ("E48", 1.05, 1.0, 1.1),
            ("POWERSOF2", 8.0, 4.0, 16.0),
            ("POWERSOF2", 9.0, 8.0, 16.0),
            ("POWERSOF2", 0.3, 0.25, 0.5),
            ("R80", 0.0, 0.0, 0.0),
        ] {
            let series = Granularity::find(name).unwrap();
            assert_eq!((series.below(number), series.above(number)), (below, above), "{name} {number}");
        }
        assert_eq!(Granularity::find("R6"), None);
    }
}
