"""Generated from proto/rmgr/v1 by deploy/gen_protos.sh; wrapped by adapters/rpc. Do not edit."""
