// SPDX-License-Identifier: GPL-2.0

//! The procedural macros of our own kernel crate. Runs in the compiler.

use proc_macro::{
    Delimiter,
    Group,
    TokenStream,
    TokenTree, //
};

/// Makes a KUnit suite of a module: each `#[test]` function is a case of it.
///
/// The functions return nothing or a `Result`. `assert!` and `assert_eq!` within the module fail the
/// case instead of the kernel. Without `CONFIG_KUNIT=y` there is no module.
#[proc_macro_attribute]
pub fn kunit_tests(suite: TokenStream, module: TokenStream) -> TokenStream {
    let mut tokens: Vec<TokenTree> = module.into_iter().collect();
    let Some(TokenTree::Group(body)) = tokens.pop() else {
        return error("kunit_tests: an inline module is wanted");
    };
    let mut cases = Vec::new();
    let mut items: Vec<TokenTree> = Vec::new();
    let mut is_test = false;
    let mut after_fn = false;

    for token in body.stream() {
        match &token {
            // `#[test]` goes; the `#` is there already.
            TokenTree::Group(group)
                if group.delimiter() == Delimiter::Bracket
                    && group.stream().to_string() == "test"
                    && matches!(items.last(), Some(TokenTree::Punct(p)) if p.as_char() == '#') =>
            {
                items.pop();
                is_test = true;
                continue;
            }
            TokenTree::Ident(word) if after_fn => {
                if is_test {
                    cases.push(word.to_string());
                }
                is_test = false;
                after_fn = false;
            }
            TokenTree::Ident(word) if word.to_string() == "fn" => after_fn = true,
            _ => {}
        }
        items.push(token);
    }
    if cases.is_empty() {
        return error("kunit_tests: no #[test] in it");
    }

    let head = "
        #[allow(unused_macros)]
        macro_rules! assert {
            ($c:expr $(,)?) => { ::kernel::kunit_assert!($c) };
        }
        #[allow(unused_macros)]
        macro_rules! assert_eq {
            ($l:expr, $r:expr $(,)?) => { ::kernel::kunit_assert!($l == $r) };
        }
    ";
    let mut tail = String::new();
    for case in &cases {
        tail += &format!(
            "unsafe extern \"C\" fn kunit_case_{case}(_: *mut ::kernel::bindings::kunit) {{
                assert!(::kernel::kunit::is_test_result_ok({case}()));
            }}"
        );
    }
    tail += &format!(
        "static mut KUNIT_CASES: [::kernel::bindings::kunit_case; {}] = [",
        cases.len() + 1
    );
    for case in &cases {
        tail += &format!("::kernel::kunit::case(c\"{case}\", kunit_case_{case}),");
    }
    tail += &format!(
        "::pin_init::zeroed()]; ::kernel::kunit_suite!({}, KUNIT_CASES);",
        suite.to_string().trim()
    );

    let (Ok(head), Ok(tail)) = (head.parse::<TokenStream>(), tail.parse::<TokenStream>()) else {
        return error("kunit_tests: cannot parse what was made");
    };
    let content: TokenStream = head.into_iter().chain(items).chain(tail).collect();
    tokens.push(TokenTree::Group(Group::new(Delimiter::Brace, content)));
    let mut gated: TokenStream = match "#[cfg(CONFIG_KUNIT = \"y\")]".parse() {
        Ok(gate) => gate,
        Err(_) => return error("kunit_tests: cannot parse the gate"),
    };
    gated.extend(tokens);
    gated
}

fn error(what: &str) -> TokenStream {
    format!("compile_error!({what:?});")
        .parse()
        .unwrap_or_default()
}
