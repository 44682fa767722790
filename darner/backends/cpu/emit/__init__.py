"""What all templates of the CPU write code with: ``template`` is the interface of a family and the function being written.

``work_queue`` lets threads claim pieces of work, ``panels`` describes packed operands, ``vectors`` reads and writes by index, ``non_temporal`` stores past the cache.
"""
