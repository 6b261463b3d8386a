/* The sockets of Windows are not here. */
#error "winsock2.h: the sockets of Windows are not provided; use <sys/socket.h>"
