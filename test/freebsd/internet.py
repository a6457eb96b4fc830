#!/usr/bin/python3
"""Plays what is outside of a stand-in host: in a network of its own it sends back what it gets, on every address and
the ports that it is given."""
import socket
import sys
import threading


def serve(connection):
    try:
        while data := connection.recv(65536):
            connection.sendall(data)
    except OSError:
        pass
    connection.close()


def listen(port):
    server = socket.create_server(("0.0.0.0", port), backlog=128)
    while True:
        accepted, _ = server.accept()
        threading.Thread(target=serve, args=(accepted,), daemon=True).start()


for port in sys.argv[1:]:
    threading.Thread(target=listen, args=(int(port),)).start()
