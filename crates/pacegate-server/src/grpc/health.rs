//! gRPC's health protocol, which reports the same as `/readyz`.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::{self, StreamExt};
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse, health_server};

use super::{NAMES, stopped};
use crate::app::Shared;

/// Minimum time between two updates to a watching client.
const UPDATE_EVERY: Duration = Duration::from_millis(200);

/// Reports whether the service is ready.
#[derive(Debug)]
pub(super) struct Health {
    shared: Arc<Shared>,
}

impl Health {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }
}

#[tonic::async_trait]
impl health_server::Health for Health {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        if !NAMES.contains(&request.get_ref().service.as_str()) {
            return Err(Status::not_found("unknown service"));
        }
        Ok(Response::new(answer(status(&self.shared).await)))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        if !NAMES.contains(&request.get_ref().service.as_str()) {
            // As the protocol requires: an unknown service may be added later.
            let unknown = stream::iter([Ok(answer(ServingStatus::ServiceUnknown))]);
            let stopped = stopped(self.shared.clone());
            return Ok(Response::new(unknown.chain(stream::pending().take_until(stopped)).boxed()));
        }
        let shared = self.shared.clone();
        let changes = stream::unfold(None, move |known| {
            let shared = shared.clone();
            async move {
                loop {
                    let now = status(&shared).await;
                    if known != Some(now) {
                        return Some((Ok(answer(now)), Some(now)));
                    }
                    if tokio::time::timeout(UPDATE_EVERY, stopped(shared.clone())).await.is_ok() {
                        return None;
                    }
                }
            }
        });
        Ok(Response::new(changes.boxed()))
    }
}

async fn status(shared: &Shared) -> ServingStatus {
    if shared.readiness().await.is_ok() { ServingStatus::Serving } else { ServingStatus::NotServing }
}

fn answer(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}
