-- The people and messages of the demo, made from numbers: the same number always gives the same document.
CREATE SCHEMA demo;

-- A pseudo-random number from 0 up to below, for the n-th thing and one of its aspects.
CREATE FUNCTION demo.random(n bigint, aspect bigint, below int) RETURNS int
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN ((hashint8extended(n, aspect) & 2147483647) % below)::int;

-- Some thousand sentences, as chaining three of them is faster than making up each message word by word.
CREATE TABLE demo.sentences (n int PRIMARY KEY, sentence text NOT NULL);
WITH words AS (
  SELECT string_to_array('the a our this every some morning train river coffee market garden window letter song bridge '
    'holiday weather ticket picture meeting recipe story mountain harbour festival neighbour library bicycle lantern '
    'we you they nobody found missed opened painted shared forgot planned carried borrowed watched will never always '
    'still maybe tomorrow tonight again before after near behind under with without quietly suddenly finally', ' ') AS w
)
INSERT INTO demo.sentences
SELECT s, (SELECT initcap(left(joined, 1)) || substr(joined, 2) || '.'
  FROM (SELECT string_agg(w[1 + demo.random(s * 32 + i, 1, cardinality(w))], ' ' ORDER BY i)
    FROM generate_series(1, 6 + demo.random(s, 2, 7)) AS i) AS sentence (joined))
FROM words, generate_series(0, 4095) AS s;

-- A date as Extended JSON, some time after the start of 2026.
CREATE FUNCTION demo.date(since interval) RETURNS jsonb
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN jsonb_build_object('$date', to_char('2026-01-01'::timestamp + since, 'YYYY-MM-DD"T"HH24:MI:SS"Z"'));

-- The name of the n-th of 5,000 people.
CREATE FUNCTION demo.user_name(n int) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN (ARRAY['ada', 'alan', 'anita', 'barbara', 'bjarne', 'brian', 'claude', 'dana', 'dennis', 'donald', 'edgar',
  'edsger', 'emmy', 'evelyn', 'frances', 'grace', 'guido', 'hedy', 'ida', 'james', 'jean', 'john', 'joan', 'karen',
  'katherine', 'ken', 'lars', 'leslie', 'linus', 'lotfi', 'lynn', 'margaret', 'mary', 'maurice', 'michael', 'niklaus',
  'peter', 'radia', 'ray', 'richard', 'robin', 'rozsa', 'shafi', 'sophie', 'stephen', 'susan', 'tim', 'tony', 'vint',
  'yukihiro'])[1 + n % 50] || '_' || lpad((n / 50)::text, 2, '0');

CREATE FUNCTION demo.people(first int, last int) RETURNS SETOF jsonb
LANGUAGE sql STABLE STRICT
BEGIN ATOMIC
  SELECT jsonb_build_object(
      'user_name', demo.user_name(person),
      'joined', demo.date(person * interval '-6 hours'),
      'about', sentence,
      'follows', (SELECT jsonb_agg(demo.user_name(demo.random(person, 10 + i, 5000)))
        FROM generate_series(1, 3 + demo.random(person, 4, 10)) AS i))
  FROM generate_series(first, last) AS person JOIN demo.sentences ON n = demo.random(person, 3, 4096);
END;

-- Fan-out on write: a post to four people is four documents, one for the inbox of each of them.
CREATE FUNCTION demo.messages(first_post int, last_post int) RETURNS SETOF jsonb
LANGUAGE sql STABLE STRICT
BEGIN ATOMIC
  WITH posts AS MATERIALIZED (
    SELECT demo.date((post * 97 + demo.random(post, 5, 97)) * interval '1 second') AS sent,
      demo.user_name(demo.random(post, 6, 5000)) AS author,
      concat_ws(' ', s1.sentence, s2.sentence, s3.sentence) AS text,
      (SELECT jsonb_agg(demo.user_name((demo.random(post, 11, 5000) + distance) % 5000))
        FROM unnest(ARRAY[0, 1237, 2411, 3607]) AS distance) AS recipients
    FROM generate_series(first_post, last_post) AS post
      JOIN demo.sentences s1 ON s1.n = demo.random(post, 7, 4096)
      JOIN demo.sentences s2 ON s2.n = demo.random(post, 8, 4096)
      JOIN demo.sentences s3 ON s3.n = demo.random(post, 9, 4096)
  )
  SELECT jsonb_build_object('recipient', recipient, 'sent', sent, 'from', author, 'to', recipients, 'text', text,
      'likes', demo.random(hashtext(recipient::text || sent::text), 10, 50))
  FROM posts, jsonb_array_elements(recipients) AS recipient;
END;
