"""Calls Pacegate over gRPC and compares every response with the documentation.

Usage: grpc_client.py ADDRESS ADMIN_KEY, against the configuration in scripts/test-grpc.
"""

import sys

import grpc
from envoy.extensions.common.ratelimit.v3 import ratelimit_pb2
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc
from envoy.type.v3 import ratelimit_unit_pb2
from google.protobuf import descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

TIMEOUT = 10
OK = rls_pb2.RateLimitResponse.OK
OVER_LIMIT = rls_pb2.RateLimitResponse.OVER_LIMIT
# `is_negative_hits`, field 4, which these stubs do not know yet: an unknown field is sent
# unchanged.
NEGATIVE_HITS = b"\x20\x01"


def show(sent, got):
    print(f"  {sent:<72} -> {got}")


def equal(found, expected, what):
    if found != expected:
        sys.exit(f"{what}: expected {expected!r}, got {found!r}")


def rejected(call, code, field, what):
    try:
        answer = call()
    except grpc.RpcError as error:
        show(what, f"{error.code().name}: {error.details()}")
        equal(error.code(), code, what)
        equal(error.details().startswith(field), True, f"{what}: {error.details()}")
        return
    sys.exit(f"{what}: expected {code.name}, got {answer!r}")


class Envoy:
    """Envoy's rate limit protocol, with the stubs of xds-protos."""

    def __init__(self, channel, key):
        self.stub, self.key = rls_pb2_grpc.RateLimitServiceStub(channel), key

    @staticmethod
    def descriptor(*entries, hits=None, negative=False, limit=None):
        descriptor = ratelimit_pb2.RateLimitDescriptor()
        for key, value in entries:
            descriptor.entries.add(key=key, value=value)
        if hits is not None:
            descriptor.hits_addend.value = hits
        if negative:
            descriptor.MergeFromString(NEGATIVE_HITS)
        if limit is not None:
            descriptor.limit.requests_per_unit, descriptor.limit.unit = limit
        return descriptor

    def send(self, *descriptors, domain="edge", hits=0, metadata=()):
        request = rls_pb2.RateLimitRequest(domain=domain, descriptors=descriptors, hits_addend=hits)
        return self.stub.ShouldRateLimit(request, timeout=TIMEOUT, metadata=metadata)

    def expect(self, what, descriptors, code, statuses, **options):
        """`statuses` are (code, name, requests per unit, remaining), or (code, remaining) where no limit applies."""
        answer = self.send(*descriptors, **options)
        found = []
        for status in answer.statuses:
            if status.HasField("current_limit"):
                limit = status.current_limit
                found.append((status.code, limit.name, limit.requests_per_unit, status.limit_remaining))
                # A limit that always denies never resets.
                equal(status.HasField("duration_until_reset"), limit.requests_per_unit > 0, what)
            else:
                found.append((status.code, status.limit_remaining))
        name = rls_pb2.RateLimitResponse.Code.Name
        shown = ", ".join(" ".join([name(each[0]), *map(str, each[1:])]) for each in found)
        show(what, f"{name(answer.overall_code)} [{shown}]")
        equal(answer.overall_code, code, what)
        equal(found, statuses, what)
        return {header.key: header.value for header in answer.response_headers_to_add}

    def test(self):
        print("envoy.service.ratelimit.v3.RateLimitService, with xds-protos")
        address = self.descriptor(("remote_address", "198.51.100.7"))
        for left in (2, 1, 0):
            headers = self.expect("remote_address=198.51.100.7", [address], OK, [(OK, "per-address", 3, left)])
            equal(headers["x-ratelimit-remaining"], str(left), "x-ratelimit-remaining")
            equal(headers["ratelimit-policy"], '"per-address";q=3;w=86400', "ratelimit-policy")
            equal("retry-after" in headers, False, "retry-after")
        headers = self.expect(
            "remote_address=198.51.100.7, once more", [address], OVER_LIMIT, [(OVER_LIMIT, "per-address", 3, 0)]
        )
        equal(1 <= int(headers["retry-after"]) <= 28_800, True, "retry-after")
        equal(headers["x-ratelimit-state"], "throttled", "x-ratelimit-state")
        show("headers to add", ", ".join(f"{name}: {value}" for name, value in sorted(headers.items())))
        self.expect(
            "an unlimited value, and a key without a rule",
            [self.descriptor(("remote_address", "192.0.2.10")), self.descriptor(("unknown", "x"))],
            OK,
            [(OK, 2**32 - 1), (OK, 0)],
        )
        team = self.descriptor(("team", "red"))
        self.expect(
            "team=red and the denied address: nothing is charged",
            [team, address],
            OVER_LIMIT,
            [(OK, "per-team", 10, 10), (OVER_LIMIT, "per-address", 3, 0)],
        )
        self.expect("team=red, hits 4 of the request", [team], OK, [(OK, "per-team", 10, 6)], hits=4)
        self.expect(
            "team=red, hits 2 of the descriptor",
            [self.descriptor(("team", "red"), hits=2)],
            OK,
            [(OK, "per-team", 10, 4)],
            hits=9,
        )
        for _ in range(2):
            self.expect(
                "team=red, hits 0: charges nothing",
                [self.descriptor(("team", "red"), hits=0)],
                OK,
                [(OK, "per-team", 10, 4)],
                hits=9,
            )
        self.expect(
            "team=red, hits 5: more than remains",
            [self.descriptor(("team", "red"), hits=5)],
            OVER_LIMIT,
            [(OVER_LIMIT, "per-team", 10, 4)],
        )
        back = [self.descriptor(("team", "red"), hits=3, negative=True)]
        self.expect("team=red, hits -3 without a key: refunds nothing", back, OK, [(OK, "per-team", 10, 4)])
        key = (("x-api-key", self.key),)
        self.expect("team=red, hits -3: refunded", back, OK, [(OK, "per-team", 10, 7)], metadata=key)
        year = ratelimit_unit_pb2.YEAR
        own = self.descriptor(("team", "own"), limit=(2, year))
        for code, left in ((OK, 1), (OK, 0), (OVER_LIMIT, 0)):
            self.expect("team=own, with an ad-hoc limit: 2 a year", [own], code, [(code, "ad-hoc", 2, left)])
        nothing = self.descriptor(("team", "own"), limit=(0, year))
        self.expect("team=own, 0 a year", [nothing], OVER_LIMIT, [(OVER_LIMIT, "ad-hoc", 0, 0)])
        invalid = grpc.StatusCode.INVALID_ARGUMENT
        rejected(lambda: self.send(address, domain=""), invalid, "domain: ", "no domain")
        rejected(self.send, invalid, "descriptors: ", "no descriptors")


class Pacegate:
    """Pacegate's own protocol, known only by reflection."""

    def __init__(self, channel, key):
        database = ProtoReflectionDescriptorDatabase(channel)
        self.services = sorted(database.get_services())
        self.pool = descriptor_pool.DescriptorPool(database)
        self.service = self.pool.FindServiceByName("pacegate.v1.RateLimiter")
        self.channel, self.key = channel, key

    def message(self, name, **fields):
        return message_factory.GetMessageClass(self.pool.FindMessageTypeByName(f"pacegate.v1.{name}"))(**fields)

    def call(self, name, request, metadata=()):
        method = self.service.methods_by_name[name]
        answer = message_factory.GetMessageClass(method.output_type)
        kind = self.channel.stream_stream if method.client_streaming else self.channel.unary_unary
        remote = kind(
            f"/{self.service.full_name}/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        return remote(request, timeout=TIMEOUT, metadata=metadata)

    def check(self, **fields):
        return self.message("CheckRequest", **fields)

    def expect(self, what, answer, **expected):
        shown = []
        for name, value in expected.items():
            found = getattr(answer, name) if not answer.DESCRIPTOR.fields_by_name[name].has_presence else (
                getattr(answer, name) if answer.HasField(name) else None
            )
            shown.append(f"{name} {found}")
            equal(found, value, f"{what}: {name}")
        show(what, ", ".join(shown))

    def test(self):
        print("pacegate.v1.RateLimiter, with reflection")
        show("services", ", ".join(self.services))
        for name in ("envoy.service.ratelimit.v3.RateLimitService", "grpc.health.v1.Health", "pacegate.v1.RateLimiter"):
            equal(name in self.services, True, name)
        methods = [method.name for method in self.service.methods]
        equal(methods[:5], ["CheckRateLimit", "GetRemainingQuota", "ResetLimit", "BatchCheck", "CheckStream"], "methods")

        user = {"identifier": "u1", "endpoint": "/orders"}
        for left in (4, 3):
            answer = self.call("CheckRateLimit", self.check(**user, timestamp=1))
            self.expect("CheckRateLimit u1", answer, allowed=True, limit=5, remaining=left, current_count=5 - left, retry_after=None)
        answer = self.call("CheckRateLimit", self.check(**user, cost=4))
        self.expect("CheckRateLimit u1, cost 4", answer, allowed=False, remaining=3, reason="LIMIT_EXCEEDED", rule="per-user")
        equal(answer.retry_after > 0 and answer.reset_at > 1_700_000_000, True, "retry_after and reset_at")
        for metadata, replayed in (((), False), ((("x-idempotency-key", "k"),), True)):
            key = {} if metadata else {"idempotency_key": "k"}
            answer = self.call("CheckRateLimit", self.check(**user, **key), metadata)
            where = "in the metadata" if metadata else "in the message"
            self.expect(f"CheckRateLimit u1, idempotency key {where}", answer, allowed=True, remaining=2, replayed=replayed)
        tenant = {"identifier": "t1", "endpoint": "/", "custom_dimension": "tenant"}
        answer = self.call("CheckRateLimit", self.check(**tenant, with_limits=True))
        self.expect("CheckRateLimit t1 in the dimension tenant", answer, rule="per-tenant", limit=2, remaining=1)
        equal([limit.dimension for limit in answer.limits], ["tenant"], "limits")

        quota = self.message("QuotaRequest", **user)
        for _ in range(2):
            answer = self.call("GetRemainingQuota", quota)
            self.expect("GetRemainingQuota u1", answer, limit=5, remaining=2, current_count=3)

        reset = self.message("ResetRequest", **user)
        unauthenticated = grpc.StatusCode.UNAUTHENTICATED
        rejected(lambda: self.call("ResetLimit", reset), unauthenticated, "", "ResetLimit u1 without a key")
        answer = self.call("ResetLimit", reset, (("x-api-key", self.key),))
        show("ResetLimit u1 with the admin key", f"reset_at {answer.reset_at}")
        self.expect("GetRemainingQuota u1", self.call("GetRemainingQuota", quota), remaining=5)

        batch = self.message("BatchCheckRequest", checks=[self.check(**user, cost=2), self.check(endpoint="/"), self.check(**user)])
        results = self.call("BatchCheck", batch).results
        equal([result.WhichOneof("result") for result in results], ["response", "error", "response"], "BatchCheck")
        self.expect("BatchCheck 1: u1, cost 2", results[0].response, allowed=True, remaining=3)
        self.expect("BatchCheck 2: without an identifier", results[1].error, code="INVALID_INPUT", field="identifier")
        self.expect("BatchCheck 3: u1", results[2].response, allowed=True, remaining=2)
        rejected(
            lambda: self.call("BatchCheck", self.message("BatchCheckRequest")),
            grpc.StatusCode.INVALID_ARGUMENT,
            "checks: ",
            "BatchCheck without checks",
        )

        count = 2_000
        checks = (self.check(identifier=f"s{number}", endpoint="/", cost=number % 5 + 1) for number in range(count))
        answers = [answer.response.remaining for answer in self.call("CheckStream", checks)]
        equal(answers, [4 - number % 5 for number in range(count)], "CheckStream")
        show(f"CheckStream of {count} checks", f"{len(answers)} responses, in order")
        checks = iter([self.check(**user), self.check(identifier="u1"), self.check(**user), self.check(**user)])
        found = []
        for answer in self.call("CheckStream", checks):
            response = answer.response
            found.append(answer.error.field if answer.HasField("error") else (response.allowed, response.remaining))
        show("CheckStream of 4 checks, the second without an endpoint", found)
        equal(found, [(True, 1), "endpoint", (True, 0), (False, 0)], "CheckStream")


def test_health(channel):
    print("grpc.health.v1.Health")
    stub = health_pb2_grpc.HealthStub(channel)
    serving = health_pb2.HealthCheckResponse.SERVING
    for name in ("", "pacegate.v1.RateLimiter", "envoy.service.ratelimit.v3.RateLimitService"):
        status = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=TIMEOUT).status
        show(f"Check {name!r}", health_pb2.HealthCheckResponse.ServingStatus.Name(status))
        equal(status, serving, name)
    unknown = health_pb2.HealthCheckRequest(service="nothing")
    rejected(lambda: stub.Check(unknown, timeout=TIMEOUT), grpc.StatusCode.NOT_FOUND, "", "Check 'nothing'")
    watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT)
    equal(next(watch).status, serving, "Watch")
    show("Watch ''", "SERVING")
    watch.cancel()


def main():
    address, key = sys.argv[1:]
    with grpc.insecure_channel(address) as channel:
        Envoy(channel, key).test()
        Pacegate(channel, key).test()
        test_health(channel)
    print("every response is as documented")


if __name__ == "__main__":
    main()
