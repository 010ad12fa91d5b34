use super::*;

#[test]
fn forty_spellings_have_one_canonical_form() {
    let spellings = [
        "/a/b",
        "a/b",
        "//a/b",
        "/a//b",
        "/a/b/",
        "/a/b//",
        "/./a/b",
        "/a/./b",
        "/a/b/.",
        "/a/b/./",
        "/x/../a/b",
        "/a/x/../b",
        "/a/b/x/..",
        "/../a/b",
        "/../../a/b",
        "/a/b?",
        "/a/b?x=1",
        "/a/b?x=/../",
        "/a/b#f",
        "/a/b/?q",
        "/%61/b",
        "/a/%62",
        "/%61/%62",
        "/a/b?%",
        "///a///b///",
        "/a/%2e/b",
        "/a/%2E/b",
        "/a/x/%2e%2e/b",
        "/a/x/.%2e/b",
        "/a/x/%2e./b",
        "/%2e/a/b",
        "/a/b/%2e",
        "a//b",
        "./a/b",
        "../a/b",
        "/a/b/x/../",
        "/a/./././b",
        "/a/b/#",
        "/x/y/../../a/b",
        "/a/b/c/d/../..",
    ];
    assert_eq!(spellings.len(), 40);
    for spelling in spellings {
        assert_eq!(PathOptions::default().normalise(spelling).unwrap(), "/a/b", "{spelling}");
    }
}

#[test]
fn different_paths_stay_different() {
    let rows = [
        ("/", "/"),
        ("/a%2Fb", "/a/b"),
        ("/a%5cb", "/a/b"),
        ("/a%252Fb", "/a%252Fb"),
        ("/a%3Fb", "/a%3Fb"),
        ("/a%2Cb", "/a,b"),
        ("/%2561", "/%2561"),
        ("/a%", "/a%25"),
        ("/a%4", "/a%254"),
        ("/%+1", "/%25+1"),
        ("/%zz", "/%25zz"),
        ("/A/b", "/A/b"),
        ("/a..b", "/a..b"),
        ("/.hidden", "/.hidden"),
        ("/é", "/%C3%A9"),
        ("/%c3%a9", "/%C3%A9"),
        ("/a b", "/a%20b"),
        ("/a%20b", "/a%20b"),
        ("/{a}", "/%7Ba%7D"),
        ("/a\\b", "/a/b"),
        ("/a:b@c;d=e,f", "/a:b@c;d=e,f"),
    ];
    for (endpoint, normal) in rows {
        assert_eq!(PathOptions::default().normalise(endpoint).unwrap(), normal);
    }
    for bad in ["", "/a\0", "/a\r\nX: y", "/\u{1b}[31m"] {
        assert!(PathOptions::default().normalise(bad).is_err(), "{bad:?}");
    }
    assert_eq!(PathOptions::default().normalise(&"a".repeat(2_049)), Err(InvalidEndpoint::TooLong));
}

#[test]
fn rules_are_matched_with_every_reading_of_a_path() {
    let rows: [(&str, &[&str]); 10] = [
        ("/a/b", &["/a/b"]),
        ("/a//b/", &["/a/b"]),
        ("/.hidden", &["/.hidden"]),
        ("/%2Fa", &["/a", "/%2Fa"]),
        ("/x/..%2fa", &["/a", "/x/..%2Fa"]),
        ("/x\\a", &["/x/a", "/x%5Ca"]),
        ("/x/../a", &["/a", "/x/../a"]),
        ("/x/..", &["/", "/x/.."]),
        ("/x//../a", &["/a", "/x/a", "/x/../a"]),
        ("/x%5C..\\a", &["/a", "/x%5C../a", "/x%5C..%5Ca"]),
    ];
    for (path, expected) in rows {
        let endpoint = PathOptions::default().endpoint(path).unwrap();
        let readings: Vec<&str> = [endpoint.counted()].into_iter().chain(endpoint.others()).collect();
        assert_eq!(readings, expected, "{path}");
    }
}

#[test]
fn encoded_slashes_can_be_rejected() {
    let paths = PathOptions { encoded_slashes: Some(EncodedSlashes::Refuse), ..PathOptions::default() };
    for path in ["/%2Fa", "/a%2f", "/a%5Cb", "/a%5c..%5cb"] {
        assert_eq!(paths.normalise(path), Err(InvalidEndpoint::EncodedSlash), "{path}");
        assert_eq!(paths.forwarded(path), Err(InvalidEndpoint::EncodedSlash), "{path}");
    }
    for path in ["/a%252Fb", "/a%", "/a\\b", "/a?b=%2F"] {
        assert!(paths.normalise(path).is_ok(), "{path}");
    }
}

#[test]
fn parameters_and_case_are_ignored_if_configured() {
    let paths = PathOptions { ignore_parameters: true, ignore_case: true, ..PathOptions::default() };
    let spellings = ["/a/b", "/A/b", "/a;x/b;y=1", "/a/b%3By", "/x/..;/a/b", "/;x/a/b", "/%41/B/", "/a/;/B"];
    for spelling in spellings {
        assert_eq!(paths.normalise(spelling).unwrap(), "/a/b", "{spelling}");
    }
    for pattern in ["/a/b", "/A;x/B", "/a/;x/b"] {
        let pattern = Pattern::parse(pattern).unwrap();
        assert!(pattern.compared_by(paths).matches("/a/b"), "{pattern}");
        assert!(!pattern.compared_by(paths).matches("/a"), "{pattern}");
    }
    assert_eq!(paths.normalise("/CAF%C3%A9").unwrap(), "/caf%c3%a9");
    assert!(Pattern::parse("/café").unwrap().compared_by(paths).matches("/caf%c3%a9"));
}

#[test]
fn forwarded_path_is_the_counted_one() {
    let rows = [
        ("/a/b", "/a/b"),
        ("/", "/"),
        ("/..", "/"),
        ("/a/", "/a/"),
        ("/a/.", "/a/"),
        ("/a/b/..", "/a/"),
        ("/a//b", "/a/b"),
        ("//a", "/a"),
        ("/x/..%2fA", "/A"),
        ("/x\\..\\A;v=1", "/A;v=1"),
        ("/%61%2Cb%3F%zz", "/a,b%3F%25zz"),
    ];
    let all = [false, true].map(|ignore| PathOptions {
        ignore_parameters: ignore,
        ignore_case: ignore,
        ..PathOptions::default()
    });
    for (path, expected) in rows {
        for paths in all {
            let forwarded = paths.forwarded(path).unwrap();
            assert_eq!(forwarded, expected, "{path}");
            assert_eq!(paths.normalise(&forwarded), paths.normalise(path), "{path}");
            assert!(paths.endpoint(&forwarded).unwrap().others.is_empty(), "{path} has one reading");
        }
    }
    assert_eq!(all[1].forwarded("/x/..;/a/;y/b;z").unwrap(), "/a/b;z");
    let kept = PathOptions { merge_slashes: false, ..PathOptions::default() };
    let rows = [
        ("//a", "/a"),
        ("/to/http://b", "/to/http://b"),
        ("/a//", "/a//"),
        ("/a//../b", "/b"),
        ("/a///.//b", "/a////b"),
    ];
    for (path, expected) in rows {
        assert_eq!(kept.forwarded(path).unwrap(), expected, "{path}");
        assert_eq!(kept.normalise(expected), kept.normalise(path), "{path}");
    }
}
