// Load test for a running Pacegate, with k6:
//   k6 run -e URL=http://127.0.0.1:8080 -e RATE=5000 deploy/k6/check.js
//
// Requests arrive at a constant rate, however long responses take, so that slow clients cannot hide
// a slow service. Options, by -e:
//   URL       the service                                  (http://127.0.0.1:8080)
//   RATE      requests per second                          (1000)
//   DURATION  duration of the test                         (1m)
//   USERS     number of users                              (10000)
//   SKEW      0: uniform; 1 or more: a few users dominate  (1)
//   ENDPOINT  the endpoint of the checks                   (/api/v1/orders)
//   BATCH     checks per request, 1 to 1000                (1)
//   KEY       an API key, if server.require_key is set     (none)
//   P99       maximum 99th percentile in milliseconds      (20)
import http from 'k6/http';
import { check } from 'k6';
import { Counter, Rate } from 'k6/metrics';

const url = __ENV.URL || 'http://127.0.0.1:8080';
const rate = number('RATE', 1000, 1, 1000000);
const users = number('USERS', 10000, 1, 100000000);
const skew = number('SKEW', 1, 0, 10);
const batch = number('BATCH', 1, 1, 1000);
const p99 = number('P99', 20, 1, 10000);
const endpoint = __ENV.ENDPOINT || '/api/v1/orders';

const allowed = new Counter('pacegate_allowed');
const blocked = new Counter('pacegate_blocked');
const degraded = new Rate('pacegate_degraded');

export const options = {
  scenarios: {
    checks: {
      executor: 'constant-arrival-rate',
      rate,
      timeUnit: '1s',
      duration: __ENV.DURATION || '1m',
      // Enough for responses that take 100 ms; k6 reports dropped_iterations otherwise.
      preAllocatedVUs: Math.ceil(rate / 10) + 10,
      maxVUs: rate + 100,
    },
  },
  thresholds: {
    // A denial (429) is a valid response; any other error is not.
    checks: ['rate>0.999'],
    http_req_duration: [`p(99)<${p99}`],
    dropped_iterations: ['count==0'],
    pacegate_degraded: ['rate<0.001'],
  },
  summaryTrendStats: ['min', 'med', 'avg', 'p(95)', 'p(99)', 'max'],
};

const headers = { 'Content-Type': 'application/json' };
if (__ENV.KEY) headers['X-API-Key'] = __ENV.KEY;
const parameters = { headers, responseCallback: http.expectedStatuses(200, 429) };

export default function () {
  if (batch === 1) {
    const response = http.post(`${url}/v1/rate-limit/check`, JSON.stringify(checkRequest()), parameters);
    if (check(response, { 'is a decision': (r) => r.status === 200 || r.status === 429 })) count(response.json());
    return;
  }
  const checks = Array.from({ length: batch }, checkRequest);
  const response = http.post(`${url}/v1/rate-limit/batch-check`, JSON.stringify({ checks }), parameters);
  if (check(response, { 'is a list of decisions': (r) => r.status === 200 })) response.json('results').forEach(count);
}

function checkRequest() {
  return { user_id: `user-${user()}`, endpoint };
}

// A power law: with a skew of s, the share x of the users sends the share x^(1/(1+s)) of the
// requests.
function user() {
  return Math.floor(users * Math.pow(Math.random(), 1 + skew));
}

function count(decision) {
  (decision.allowed ? allowed : blocked).add(1);
  degraded.add(decision.degraded === true);
}

function number(name, fallback, min, max) {
  const value = __ENV[name] === undefined ? fallback : Number(__ENV[name]);
  if (!(value >= min && value <= max)) throw new Error(`${name}: must be between ${min} and ${max}`);
  return value;
}
