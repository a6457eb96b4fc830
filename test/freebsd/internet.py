#!/usr/bin/python3
"""Plays what is outside of a stand-in host: in a network of its own it sends back what it gets, on every address."""
import socket
import sys
import threading

server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("0.0.0.0", int(sys.argv[1])))
server.listen(128)


def serve(connection):
    try:
        while data := connection.recv(65536):
            connection.sendall(data)
    except OSError:
        pass
    connection.close()


while True:
    accepted, _ = server.accept()
    threading.Thread(target=serve, args=(accepted,), daemon=True).start()
