# Stands for the official Consul image: its user's numbers, its folder for data, and `consul` on the path.
FROM python:3.11-slim-bookworm
COPY consul /usr/local/bin/consul
RUN install -d -o 100 -g 1000 /consul/data
ENTRYPOINT ["consul"]
