//! The macros that declare calls and statements, the rows of their answers, and fragments.

/// Makes a struct of the arguments of a request, and the request.
macro_rules! request {
    (
        [$($meta:meta),*] $name:ident [$($life:lifetime)?] { $($(#[$about:meta])* $field:ident: $type:ty),* } -> $answer:ty,
        $label:expr, $statement:expr
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name $(<$life>)? {
            $($(#[$about])* pub $field: $type),*
        }

        impl $(<$life>)? $crate::routing::protocol::call::Call for $name $(<$life>)? {
            type Answer = $answer;
            const NAME: &'static str = $label;

            fn statement(&self) -> String {
                $statement
            }

            fn params(&self) -> Vec<$crate::sql::param::Param<'_>> {
                vec![$($crate::sql::record::Argument::param(&self.$field)),*]
            }
        }
    };
}

/// Declares calls: `function => Type { argument: type, … } -> answer;`. Fields are the function's arguments, in its order.
macro_rules! calls {
    ($(
        $(#[$doc:meta])*
        $function:ident => $name:ident $(<$life:lifetime>)? { $($(#[$about:meta])* $field:ident: $type:ty),* $(,)? } -> $answer:ty;
    )*) => {
        $(
            request! {
                [$($doc),*] $name [$($life)?] { $($(#[$about])* $field: $type),* } -> $answer,
                concat!("docshard_internal.", stringify!($function)), $name::SIGNATURE.statement()
            }

            impl $(<$life>)? $name $(<$life>)? {
                /// the function that serves it
                pub const SIGNATURE: $crate::routing::protocol::signature::Signature = $crate::routing::protocol::signature::Signature {
                    function: stringify!($function),
                    arguments: &[$((stringify!($field), <$type as $crate::sql::record::Argument>::TYPE)),*],
                    returns: <$answer as $crate::routing::protocol::answer::Answer>::SHAPE,
                };
            }
        )*

        /// The functions of these calls.
        pub(super) const SIGNATURES: &[$crate::routing::protocol::signature::Signature] = &[$($name::SIGNATURE),*];
    };
}

/// Declares statements that run at a shard: `Type { parameter: type, … } -> answer { "SQL" }`. Fields are the parameters `$1`, `$2`, …,
/// in their order.
macro_rules! shard_statements {
    ($(
        $(#[$doc:meta])*
        $name:ident $(<$life:lifetime>)? { $($(#[$about:meta])* $field:ident: $type:ty),* $(,)? } -> $answer:ty { $sql:expr }
    )*) => {$(
        request! {
            [$($doc),*] $name [$($life)?] { $($(#[$about])* $field: $type),* } -> $answer, stringify!($name), String::from($sql)
        }
    )*};
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

            $crate::sql::record::record! { $name { $($field: $type),* } }

            impl $crate::routing::protocol::answer::Answer for $name {
                const SHAPE: $crate::routing::protocol::signature::Shape =
                    $crate::routing::protocol::signature::Shape::Table(<Self as $crate::sql::record::Record>::COLUMNS);
                const COLUMNS: &'static [$crate::sql::column::Column] =
                    <Self as $crate::sql::record::Record>::WIRE;

                fn decode<R: $crate::sql::record::Row>(of: &str, rows: &[R]) -> $crate::error::Result<Self> {
                    $crate::sql::record::decode_only(of, rows)
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
                    // Writing to a string does not fail.
                    let _ = std::fmt::Write::write_fmt(&mut sql, format_args!("{}, ", $argument));
                )*
                sql.truncate(sql.trim_end_matches(", ").len());
                sql + ")"
            }
        )*

        /// These functions.
        pub(super) const SIGNATURES: &[$crate::routing::protocol::signature::Signature] = &[$($crate::routing::protocol::signature::Signature {
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

            impl<$life> $crate::routing::protocol::checked::CheckedCall for $name<$life> {
                type Answer = $answer;
                const SIGNATURE: $crate::routing::protocol::signature::Signature = $crate::routing::protocol::signature::Signature {
                    function: stringify!($function),
                    arguments: &[
                        ("collection", "integer"), ("token", "bigint"), ("version", "bigint"),
                        $((stringify!($field), <$type as $crate::routing::protocol::checked::CheckedArgument>::TYPE)),*
                    ],
                    returns: <$answer as $crate::routing::protocol::answer::Answer>::SHAPE,
                };

                fn into_text(self) -> $crate::routing::protocol::checked::CallText {
                    let mut call = $crate::routing::protocol::checked::CallText::new(
                        stringify!($function), self.collection, self.token, self.version,
                    );
                    $($crate::routing::protocol::checked::CheckedArgument::add(self.$field, &mut call);)*
                    call
                }
            }
        )*

        /// The functions of these calls.
        pub(super) const SIGNATURES: &[$crate::routing::protocol::signature::Signature] =
            &[$(<$name as $crate::routing::protocol::checked::CheckedCall>::SIGNATURE),*];
    };
}
