//! The part of CEL, the language of Limitador's conditions, that has an equivalent in Pacegate.

use pacegate::descriptor::ValueTest;

/// A key of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Operand {
    /// The index of the descriptor. `None` in the older syntax, which has no index.
    pub(super) descriptor: Option<usize>,
    pub(super) key: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Number(String),
    Text(String),
    Sign(&'static str),
}

const SIGNS: [&str; 8] = ["==", "!=", "&&", "[", "]", ".", "(", ")"];
const EXPECTED: &str =
    "expected `descriptors[0]['key'] == 'value'`, `!=`, `.startsWith('value')`, and `&&` between them";

/// Parses conditions that must all hold.
pub(super) fn predicate(text: &str) -> Result<Vec<(Operand, ValueTest)>, String> {
    let mut reader = Reader::new(text)?;
    let mut found = vec![reader.comparison()?];
    while !reader.at_end() {
        reader.sign("&&")?;
        found.push(reader.comparison()?);
    }
    Ok(found)
}

/// Parses a key to count by.
pub(super) fn variable(text: &str) -> Result<Operand, String> {
    let mut reader = Reader::new(text)?;
    let operand = reader.operand()?;
    if reader.at_end() {
        Ok(operand)
    } else {
        Err("expected only a key to count by, such as `descriptors[0]['key']`".into())
    }
}

struct Reader {
    tokens: Vec<Token>,
    next: usize,
}

impl Reader {
    fn new(text: &str) -> Result<Self, String> {
        Ok(Self { tokens: tokens(text)?, next: 0 })
    }

    fn at_end(&self) -> bool {
        self.next == self.tokens.len()
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.next)
    }

    fn take(&mut self) -> Option<Token> {
        let token = self.tokens.get(self.next).cloned();
        self.next += 1;
        token
    }

    fn is_sign(&self, sign: &str) -> bool {
        matches!(self.peek(), Some(Token::Sign(other)) if *other == sign)
    }

    fn sign(&mut self, sign: &str) -> Result<(), String> {
        let found = self.is_sign(sign);
        self.next += 1;
        if found { Ok(()) } else { Err(EXPECTED.into()) }
    }

    fn text(&mut self) -> Result<String, String> {
        match self.take() {
            Some(Token::Text(text)) => Ok(text),
            _ => Err(EXPECTED.into()),
        }
    }

    fn comparison(&mut self) -> Result<(Operand, ValueTest), String> {
        let operand = self.operand()?;
        let test = match self.take() {
            Some(Token::Sign("==")) => ValueTest::Is(self.value(&operand)?),
            Some(Token::Sign("!=")) => ValueTest::IsNot(self.value(&operand)?),
            Some(Token::Sign(".")) if self.take() == Some(Token::Word("startsWith".into())) => {
                self.sign("(")?;
                let text = self.text()?;
                self.sign(")")?;
                ValueTest::StartsWith(text)
            }
            _ => return Err(EXPECTED.into()),
        };
        Ok((operand, test))
    }

    /// Quoted text. The quotes are optional in the older syntax.
    fn value(&mut self, operand: &Operand) -> Result<String, String> {
        match self.take() {
            Some(Token::Text(text)) => Ok(text),
            Some(Token::Word(text) | Token::Number(text)) if operand.descriptor.is_none() => Ok(text),
            _ => Err(format!("a key can only be compared with quoted text; {EXPECTED}")),
        }
    }

    /// `descriptors[0]['key']`, `descriptors[0].key`, or `key.with.dots` in the older syntax.
    fn operand(&mut self) -> Result<Operand, String> {
        let Some(Token::Word(word)) = self.take() else { return Err(EXPECTED.into()) };
        if word == "descriptors" && self.is_sign("[") {
            self.sign("[")?;
            let index = match self.take() {
                Some(Token::Number(number)) => number.parse().map_err(|_| EXPECTED)?,
                _ => return Err(EXPECTED.into()),
            };
            self.sign("]")?;
            let key = if self.is_sign(".") {
                self.sign(".")?;
                match self.take() {
                    Some(Token::Word(word)) => word,
                    _ => return Err(EXPECTED.into()),
                }
            } else {
                self.sign("[")?;
                let key = self.text()?;
                self.sign("]")?;
                key
            };
            return Ok(Operand { descriptor: Some(index), key });
        }
        let mut key = word;
        while self.is_sign(".") {
            self.sign(".")?;
            match self.take() {
                Some(Token::Word(word)) => key = format!("{key}.{word}"),
                _ => return Err(EXPECTED.into()),
            }
        }
        match key.split('.').next() {
            Some("limit" | "descriptors") => Err(format!("`{key}` is not a key of a descriptor; {EXPECTED}")),
            _ if self.is_sign("(") || self.is_sign("[") => Err(EXPECTED.into()),
            _ => Ok(Operand { descriptor: None, key }),
        }
    }
}

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut found = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if let Some(sign) = SIGNS.into_iter().find(|sign| rest.starts_with(sign)) {
            found.push(Token::Sign(sign));
            sign.len()
        } else if first == '\'' || first == '"' {
            let inner = &rest[1..];
            let end = inner.find(first).ok_or("a quote is not closed")?;
            if inner[..end].contains('\\') {
                return Err("escapes in text are not supported".into());
            }
            found.push(Token::Text(inner[..end].to_owned()));
            end + 2
        } else if first.is_ascii_alphanumeric() || first == '_' {
            let end = rest.find(|character: char| !character.is_ascii_alphanumeric() && character != '_');
            let word = rest[..end.unwrap_or(rest.len())].to_owned();
            let length = word.len();
            let number = word.bytes().all(|byte| byte.is_ascii_digit());
            found.push(if number { Token::Number(word) } else { Token::Word(word) });
            length
        } else {
            return Err(format!("`{first}` is not supported; {EXPECTED}"));
        };
        let after = &rest[length..];
        // Raw and triple-quoted text, `r'…'` and `'''…'''`.
        let glued = after.starts_with(['\'', '"'])
            && matches!(found.last(), Some(Token::Word(_) | Token::Number(_) | Token::Text(_)));
        if glued {
            return Err(format!("raw and triple-quoted text is not supported; {EXPECTED}"));
        }
        rest = after.trim_start();
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(index: usize, key: &str) -> Operand {
        Operand { descriptor: Some(index), key: key.into() }
    }

    fn bare(key: &str) -> Operand {
        Operand { descriptor: None, key: key.into() }
    }

    fn is(text: &str) -> ValueTest {
        ValueTest::Is(text.into())
    }

    #[test]
    fn supported_conditions_are_parsed() {
        let cases = [
            ("descriptors[0]['req.method'] == 'POST'", vec![(at(0, "req.method"), is("POST"))]),
            ("descriptors[0][\"a\"]=='b'", vec![(at(0, "a"), is("b"))]),
            ("descriptors[1].tier != \"gold\"", vec![(at(1, "tier"), ValueTest::IsNot("gold".into()))]),
            ("descriptors[0].p.startsWith('/v1/')", vec![(at(0, "p"), ValueTest::StartsWith("/v1/".into()))]),
            (
                "descriptors[0]['p'].startsWith(\"\")",
                vec![(at(0, "p"), ValueTest::StartsWith(String::new()))],
            ),
            (
                " descriptors[0].a == 'x' && descriptors[0]['b'] == \"it's\" ",
                vec![(at(0, "a"), is("x")), (at(0, "b"), is("it's"))],
            ),
            ("descriptors[0].a == 'b && c'", vec![(at(0, "a"), is("b && c"))]),
            ("descriptors[0].a == 'é]['", vec![(at(0, "a"), is("é]["))]),
            ("req.method == 'POST'", vec![(bare("req.method"), is("POST"))]),
            ("method == POST", vec![(bare("method"), is("POST"))]),
            ("x == 5", vec![(bare("x"), is("5"))]),
            ("x != \"5\"", vec![(bare("x"), ValueTest::IsNot("5".into()))]),
        ];
        for (text, expected) in cases {
            assert_eq!(predicate(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn unsupported_conditions_are_rejected() {
        for text in [
            "",
            "true",
            "descriptors[0].a",
            "descriptors[0].a == ",
            "descriptors[0].a == b",
            "descriptors[0].a == 5",
            "descriptors[0].a == descriptors[0].b",
            "'POST' == descriptors[0].a",
            "descriptors[0].a > '5'",
            "descriptors[0].a in ['x', 'y']",
            "descriptors[0].a == 'x' || descriptors[0].a == 'y'",
            "!(descriptors[0].a == 'x')",
            "(descriptors[0].a == 'x')",
            "descriptors[0].a.matches('^x')",
            "descriptors[0].a.endsWith('x')",
            "descriptors[0].a.contains('x')",
            "descriptors[0].a.startsWith('x') == false",
            "descriptors[0].a.startsWith(x)",
            "descriptors[0].a.b == 'x'",
            "descriptors[0]['a']['b'] == 'x'",
            "descriptors[-1].a == 'x'",
            "descriptors[99999999999999999999].a == 'x'",
            "descriptors.exists(d, d.a == 'x')",
            "size(descriptors) == 1",
            "has(descriptors[0].a)",
            "descriptors[0].a == 'x' &&",
            "descriptors[0].a == 'x' descriptors[0].b == 'y'",
            "descriptors[0].a == 'x",
            "descriptors[0].a == 'x\\'y'",
            "descriptors[0].a == r'x'",
            "descriptors[0].a == '''x'''",
            "descriptors[0].a == 'x' ? true : false",
            "limit.name == 'x'",
            "limit.id == 'x'",
            "req.path.startsWith('/x')",
            "req.size == 1.5",
            "int(descriptors[0].hour) > 8",
        ] {
            assert!(predicate(text).is_err(), "{text}: {:?}", predicate(text));
        }
    }

    #[test]
    fn variables_are_only_keys() {
        assert_eq!(variable("descriptors[0]['user.id']"), Ok(at(0, "user.id")));
        assert_eq!(variable("descriptors[2].user_id"), Ok(at(2, "user_id")));
        assert_eq!(variable("user_id"), Ok(bare("user_id")));
        assert_eq!(variable("auth.identity.user"), Ok(bare("auth.identity.user")));
        for text in [
            "",
            "'x'",
            "descriptors[0]",
            "descriptors",
            "descriptors[0].a + 'x'",
            "descriptors[0].a.b",
            "limit.name",
            "5",
        ] {
            assert!(variable(text).is_err(), "{text}: {:?}", variable(text));
        }
    }
}
