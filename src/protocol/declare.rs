//! The macros that declare calls, the rows of their answers, and fragments.

/// Declares calls: `function => Type { argument: type, … } -> answer;`. Fields are the function's arguments, in its order.
macro_rules! calls {
    ($(
        $(#[$doc:meta])*
        $function:ident => $name:ident $(<$life:lifetime>)? { $($(#[$about:meta])* $field:ident: $type:ty),* $(,)? } -> $answer:ty;
    )*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug)]
            pub struct $name $(<$life>)? {
                $($(#[$about])* pub $field: $type),*
            }

            impl $(<$life>)? $crate::protocol::call::Call for $name $(<$life>)? {
                type Answer = $answer;
                const SIGNATURE: $crate::protocol::signature::Signature = $crate::protocol::signature::Signature {
                    function: stringify!($function),
                    arguments: &[$((stringify!($field), <$type as $crate::pg::spi::record::Argument>::TYPE)),*],
                    returns: <$answer as $crate::protocol::answer::Answer>::SHAPE,
                };

                fn params(&self) -> Vec<$crate::pg::spi::param::Param<'_>> {
                    vec![$($crate::pg::spi::record::Argument::param(&self.$field)),*]
                }
            }
        )*

        /// The functions of these calls.
        #[cfg(any(test, feature = "pg_test"))]
        pub(super) const SIGNATURES: &[$crate::protocol::signature::Signature] = &[$(<$name as $crate::protocol::call::Call>::SIGNATURE),*];
    };
}

/// Declares the rows of answers: an answer is one such row, or a `Vec` of them.
macro_rules! rows {
    ($(
        $(#[$doc:meta])*
        $name:ident { $($(#[$about:meta])* $field:ident: $type:ty),* $(,)? }
    )*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Debug)]
            pub struct $name {
                $($(#[$about])* pub $field: $type),*
            }

            $crate::pg::spi::record::record! { $name { $($field: $type),* } }

            impl $crate::protocol::answer::Answer for $name {
                const SHAPE: $crate::protocol::signature::Shape =
                    $crate::protocol::signature::Shape::Table(<Self as $crate::pg::spi::record::Record>::COLUMNS);
                const COLUMNS: &'static [docshard_core::cluster::frontend::Column] =
                    <Self as $crate::pg::spi::record::Record>::WIRE;

                fn decode<R: $crate::protocol::Row>(of: &$crate::protocol::signature::Signature, rows: &[R]) -> $crate::pg::error::Result<Self> {
                    $crate::pg::spi::record::decode_only(&of.name(), rows)
                }
            }
        )*
    };
}

/// Declares fragments: `name(argument: "type", …) -> "type";` makes a function that writes the call around the SQL of its arguments.
macro_rules! fragments {
    ($(
        $(#[$doc:meta])*
        $function:ident($($argument:ident: $type:literal),* $(,)?) -> $shape:expr;
    )*) => {
        $(
            $(#[$doc])*
            #[allow(clippy::too_many_arguments, reason = "the function's")]
            pub fn $function($($argument: impl std::fmt::Display),*) -> String {
                let mut sql = String::from(concat!("docshard_internal.", stringify!($function), "("));
                $(
                    // A string takes all there is to write.
                    let _ = std::fmt::Write::write_fmt(&mut sql, format_args!("{}, ", $argument));
                )*
                sql.truncate(sql.trim_end_matches(", ").len());
                sql + ")"
            }
        )*

        /// These functions.
        #[cfg(any(test, feature = "pg_test"))]
        pub(super) const SIGNATURES: &[$crate::protocol::signature::Signature] = &[$($crate::protocol::signature::Signature {
            function: stringify!($function),
            arguments: &[$((stringify!($argument), $type)),*],
            returns: $shape,
        }),*];
    };
}

/// Declares calls at a collection's version, as `calls!` does others. Their first arguments, which are not repeated here, are the
/// collection's number, its token, and the shard's version: a placeholder in a statement for several shards.
macro_rules! checked_calls {
    ($(
        $(#[$doc:meta])*
        $function:ident => $name:ident<$life:lifetime> { $($(#[$about:meta])* $field:ident: $type:ty),* $(,)? } -> $answer:ty;
    )*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Debug)]
            pub struct $name<$life> {
                pub collection: i32,
                pub token: i64,
                pub version: i64,
                $($(#[$about])* pub $field: $type),*
            }

            impl<$life> $crate::protocol::checked::CheckedCall for $name<$life> {
                type Answer = $answer;
                const SIGNATURE: $crate::protocol::signature::Signature = $crate::protocol::signature::Signature {
                    function: stringify!($function),
                    arguments: &[
                        ("collection", "integer"), ("token", "bigint"), ("version", "bigint"),
                        $((stringify!($field), <$type as $crate::protocol::checked::CheckedArgument>::TYPE)),*
                    ],
                    returns: <$answer as $crate::protocol::answer::Answer>::SHAPE,
                };

                fn into_text(self) -> $crate::protocol::checked::CallText {
                    let mut call = $crate::protocol::checked::CallText::new(
                        stringify!($function), self.collection, self.token, self.version,
                    );
                    $($crate::protocol::checked::CheckedArgument::add(self.$field, &mut call);)*
                    call
                }
            }
        )*

        /// The functions of these calls.
        #[cfg(any(test, feature = "pg_test"))]
        pub(super) const SIGNATURES: &[$crate::protocol::signature::Signature] =
            &[$(<$name as $crate::protocol::checked::CheckedCall>::SIGNATURE),*];
    };
}
